"""The interface to a messaging system: send messages, and find messages that were sent."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import structlog

from kingdom.bus.effects.effect import Absent, Acked, CallResult, Idempotency, ReconcileResult, Target
from kingdom.court.documents import Message, Urgency
from kingdom.court.envoy.records import MessageThread, ShownQuestion

_log = structlog.get_logger("kingdom.court")


class ProgressMark(StrEnum):
    """The progress of an event that came from a person's message. It is shown on that message."""

    SEEN = "seen"
    NEEDS_PERSON = "needs_person"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to send. `key` is the same for all attempts. `identifier` is that of the attempt (see `Attempt`)."""

    message: Message
    channel: str
    thread: MessageThread | None
    key: str
    identifier: str
    attempt: int


class Messenger(ABC):
    """A messaging system. `post` answers with `channel` and `ts` if people can reply to the message in a thread.

    `end_question` and `mark` raise Transient if the system refuses a change or cannot be reached.
    """

    target: Target

    @abstractmethod
    async def post(self, post: OutgoingMessage) -> CallResult:
        """Send a message once."""

    @abstractmethod
    async def find(self, post: OutgoingMessage) -> ReconcileResult:
        """Find out whether any attempt sent the message."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    async def end_question(self, question: ShownQuestion, ending: str) -> None:
        """Show under a question how it ended, and remove its buttons."""

    @abstractmethod
    async def mark(self, channel: str, ts: str, mark: ProgressMark) -> None:
        """Show progress on a person's message."""


class OneWayMessenger(Messenger):
    """A messenger that cannot change sent messages."""

    async def open(self) -> None:
        """See `Messenger.open`."""

    async def close(self) -> None:
        """See `Messenger.close`."""

    async def end_question(self, question: ShownQuestion, ending: str) -> None:
        """See `Messenger.end_question`."""

    async def mark(self, channel: str, ts: str, mark: ProgressMark) -> None:
        """See `Messenger.mark`."""


class LogMessenger(OneWayMessenger):
    """Writes messages to the log, if no other messenger is configured. A message may be logged twice."""

    target = Target(name="log", idempotency=Idempotency.IDENTIFIER)

    async def post(self, post: OutgoingMessage) -> CallResult:
        """See `Messenger.post`."""
        message = post.message
        level = logging.WARNING if message.urgency is not Urgency.NORMAL else logging.INFO
        assignment_id = str(message.context.get("task_id") or "")
        _log.log(level, message.content, message=message.id, type=message.type, assignment=assignment_id)
        return Acked()

    async def find(self, post: OutgoingMessage) -> ReconcileResult:
        """See `Messenger.find`."""
        del post
        return Absent()
