"""The port to where people are: what is said there, and how it is found again."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import structlog

from kingdom.bus.effects.effect import Absent, Acked, CallResult, Idempotency, ReconcileResult, Target
from kingdom.court.documents import Message, Urgency
from kingdom.court.envoy.records import Awaited, Thread

_log = structlog.get_logger("kingdom.court")


class Mark(StrEnum):
    """What is shown on the message of a person that became an event."""

    SEEN = "seen"
    NEEDS_PERSON = "needs_person"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A message on its way: `key` is the same for every attempt, `identifier` is that of one."""

    message: Message
    channel: str
    thread: Thread | None
    key: str
    identifier: str
    attempt: int


class Place(ABC):
    """Where people are told; `post` answers with `channel` and `ts` where a reply to the message would hang on it."""

    target: Target

    @abstractmethod
    async def post(self, post: Post) -> CallResult:
        """Say something once."""

    @abstractmethod
    async def find(self, post: Post) -> ReconcileResult:
        """Find out whether something was said by any attempt."""

    @abstractmethod
    async def open(self) -> None:
        """Make ready what the place needs."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what the place needs."""

    @abstractmethod
    async def end_question(self, question: Awaited, ending: str) -> None:
        """Show under a question how it ended, and take its buttons away."""

    @abstractmethod
    async def mark(self, channel: str, ts: str, mark: Mark) -> None:
        """Show on a person's message what became of it."""


class OneWayPlace(Place):
    """A place where nothing can be changed that was said."""

    async def open(self) -> None:
        """See the port."""

    async def close(self) -> None:
        """See the port."""

    async def end_question(self, question: Awaited, ending: str) -> None:
        """See the port."""

    async def mark(self, channel: str, ts: str, mark: Mark) -> None:
        """See the port."""


class LogPlace(OneWayPlace):
    """The log, where nothing else is set up; what was said may stand there twice."""

    target = Target(name="log", idempotency=Idempotency.IDENTIFIER)

    async def post(self, post: Post) -> CallResult:
        """See the port."""
        message = post.message
        level = logging.WARNING if message.urgency is not Urgency.NORMAL else logging.INFO
        task_id = str(message.context.get("task_id") or "")
        _log.log(level, message.content, message=message.id, type=message.type, task=task_id)
        return Acked()

    async def find(self, post: Post) -> ReconcileResult:
        """See the port."""
        del post
        return Absent()
