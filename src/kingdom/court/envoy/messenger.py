"""The port to where people are: what is said there, and how it is found again."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import structlog

from kingdom.bus.effect import Absent, Acked, Answer, Finding, Honours, Target
from kingdom.court.documents import Message, Urgency
from kingdom.court.envoy.records import MessageThread, ShownQuestion

_log = structlog.get_logger("kingdom.court")


class ProgressMark(StrEnum):
    """What is shown on the message of a person that became an event."""

    SEEN = "seen"
    NEEDS_PERSON = "needs_person"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message on its way: `key` is the same for every attempt, `identifier` is that of one."""

    message: Message
    channel: str
    thread: MessageThread | None
    key: str
    identifier: str
    attempt: int


class Messenger(ABC):
    """Where people are told; `post` answers with `channel` and `ts` where a reply to the message would hang on it."""

    target: Target

    @abstractmethod
    async def post(self, post: OutgoingMessage) -> Answer:
        """Say something once."""

    @abstractmethod
    async def find(self, post: OutgoingMessage) -> Finding:
        """Find out whether something was said by any attempt."""

    @abstractmethod
    async def open(self) -> None:
        """Make ready what the messenger needs."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what the messenger needs."""

    @abstractmethod
    async def end_question(self, question: ShownQuestion, ending: str) -> None:
        """Show under a question how it ended, and take its buttons away."""

    @abstractmethod
    async def mark(self, channel: str, ts: str, mark: ProgressMark) -> None:
        """Show on a person's message what became of it."""


class OneWayMessenger(Messenger):
    """A messenger where nothing can be changed that was said."""

    async def open(self) -> None:
        """See the port."""

    async def close(self) -> None:
        """See the port."""

    async def end_question(self, question: ShownQuestion, ending: str) -> None:
        """See the port."""

    async def mark(self, channel: str, ts: str, mark: ProgressMark) -> None:
        """See the port."""


class LogMessenger(OneWayMessenger):
    """The log, where nothing else is set up; what was said may stand there twice."""

    target = Target(name="log", honours=Honours.IDENTIFIER)

    async def post(self, post: OutgoingMessage) -> Answer:
        """See the port."""
        message = post.message
        level = logging.WARNING if message.urgency is not Urgency.NORMAL else logging.INFO
        assignment_id = str(message.context.get("task_id") or "")
        _log.log(level, message.content, message=message.id, type=message.type, task=assignment_id)
        return Acked()

    async def find(self, post: OutgoingMessage) -> Finding:
        """See the port."""
        del post
        return Absent()
