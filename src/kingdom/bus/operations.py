"""The port for operators: inspect, pause and repair. It is never on the hot path."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from kingdom.bus.log import LogCursor, LoggedEntry

# Counting stops here, so that no command reads a whole backlog. Shown as "10000+".
COUNT_LIMIT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """The state of one stream now; counts stop at COUNT_LIMIT."""

    stream: str
    pending: int
    processing: int
    dead: int
    oldest_pending_seconds: float
    paused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that decide whether one event runs now in one stream."""

    event_id: UUID
    stream: str
    type: str
    status: Literal["PENDING", "PROCESSING", "DONE", "DEAD", "DISCARDED"]
    attempt: int
    max_attempts: int
    crash_count: int
    now: datetime
    due_at: datetime | None = None
    partition_key: str | None = None
    processed_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    paused_since: datetime | None = None
    paused_reason: str | None = None
    paused_by: str | None = None
    worker: str | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    ahead_event_id: UUID | None = None
    ahead_status: str | None = None
    blocked_by_event_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that ended DEAD, with everything a person needs to decide about it."""

    event_id: UUID
    stream: str
    type: str
    partition_key: str | None
    attempt: int
    error_code: str | None
    error_message: str | None
    created_at: datetime
    died_at: datetime
    position: int
    envelope: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Selects dead letters. Every given field must match; `after` pages by position."""

    stream: str | None = None
    type: str | None = None
    code: str | None = None
    event_id: UUID | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished events and log entries are kept."""

    archive: timedelta = timedelta(days=7)
    log: timedelta = timedelta(days=90)
    partitions_ahead_days: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What a retention run did."""

    partitions_made: int
    partitions_dropped: int
    dedup_keys_removed: int
    records_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A session that keeps the database from removing old row versions."""

    what: str
    age_seconds: float
    detail: str


class Operations(ABC):
    """Everything that an operator can ask of a bus and do to it. Every change is recorded in the log.

    A backend writes all of these methods. `redrive_all` with its slow start, `why`, the backlog metrics and the
    periodic retention are built on them and come free.
    """

    @abstractmethod
    async def stats(self) -> list[StreamStats]:
        """Return the state of every stream that is paused or has open or dead events."""

    @abstractmethod
    async def situations(self, event_id: UUID) -> list[Situation]:
        """Return the situation of an event in each stream that has or had it."""

    @abstractmethod
    async def pause(self, stream: str, *, reason: str, actor: str) -> None:
        """Stop claims of a stream on all hosts immediately. Events in flight finish."""

    @abstractmethod
    async def resume(self, stream: str, *, actor: str) -> bool:
        """Allow claims again. Return False if the stream was not paused."""

    @abstractmethod
    async def dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        """Return matching dead letters in the order of their position."""

    @abstractmethod
    async def patch(self, event_id: UUID, stream: str, payload: Mapping[str, Any], *, actor: str) -> None:
        """Replace the payload of a dead letter. Its history keeps the original."""

    @abstractmethod
    async def redrive(self, positions: Sequence[int], *, actor: str) -> list[UUID]:
        """Make dead letters due again, with the same id and order, and return the redriven events."""

    @abstractmethod
    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        """End dead letters permanently. A key that one of them blocked continues."""

    @abstractmethod
    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        """End a waiting event as DEAD, or ask the worker of a running event, which learns of it at its next renewal."""

    @abstractmethod
    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        """Return the entries after the cursor. With `about`, return only those of this aggregate id.

        No entry is missed or repeated, whatever the order in which transactions commit.
        """

    @abstractmethod
    async def log_end(self) -> LogCursor:
        """Return the cursor of the newest readable entry."""

    @abstractmethod
    async def retain(self, retention: Retention) -> RetentionReport:
        """Create partitions ahead, and remove what is older than the retention."""

    @abstractmethod
    async def pins(self) -> list[Pin]:
        """Return the sessions that keep old row versions alive, oldest first."""
