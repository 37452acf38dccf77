"""The interface for operators, who inspect, pause and repair streams. The delivery of events does not use it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry

# Counting stops at this number, so that no command reads a whole backlog. The number is then shown as "10000+".
COUNT_LIMIT = 10_000
_PAGE_SIZE = 500
# The types of the log entries about a pause of a stream and its end.
STREAM_PAUSED, STREAM_RESUMED = "stream.paused", "stream.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """The current state of one stream. `paused` is the reason for a pause.

    The counts of pending and dead events stop at COUNT_LIMIT.
    """

    stream: str
    pending: int
    processing: int
    dead: int
    oldest_pending_seconds: float
    paused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that decide whether an event can run now in one stream.

    `ahead_event_id` is the event of the same key that must run first. `blocked_by_event_id` is the dead event that
    blocks the key.
    """

    event_id: UUID
    stream: str
    type: str
    # UNSENT and SENT: in a stream with a transport, before and after the courier has sent the event.
    status: Literal["PENDING", "PROCESSING", "DONE", "DEAD", "DISCARDED", "UNSENT", "SENT"]
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
    """Selects dead letters. Every given field must match. `after` is the last position of the previous page."""

    stream: str | None = None
    type: str | None = None
    code: str | None = None
    event_id: UUID | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long ended events, log entries and texts of runs are kept.

    Partitions are created `partitions_ahead_days` in advance.
    """

    archive: timedelta = timedelta(days=7)
    log: timedelta = timedelta(days=90)
    run_texts: timedelta = timedelta(days=7)
    partitions_ahead_days: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """The numbers of items that one application of the retention has created and removed."""

    partitions_made: int
    partitions_dropped: int
    dedup_keys_removed: int
    records_removed: int

    @property
    def removed(self) -> int:
        """Return the number of items that were removed."""
        return self.partitions_dropped + self.dedup_keys_removed + self.records_removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Something that pins old row versions, so that the database cannot remove them: usually an old session."""

    what: str
    age_seconds: float
    detail: str


class Operations(ABC):
    """Everything that an operator can read from a bus or change in it. Every change is recorded in the log.

    A backend implements all of these methods. `redrive_all`, `why`, the backlog metrics and the periodic retention use
    them and work with every backend.
    """

    @abstractmethod
    async def stats(self) -> list[StreamStats]:
        """Return the state of every stream that is paused or has open or dead events."""

    @abstractmethod
    async def situations(self, event_id: UUID) -> list[Situation]:
        """Return the situation of an event in each stream that contains it or its archived copy."""

    @abstractmethod
    async def pause(self, stream: str, *, reason: str, actor: str) -> None:
        """Refuse new claims from a stream on all hosts. Events that are already claimed continue."""

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
        """Make dead letters due again with the same ids and order. Return the ids of the redriven events."""

    @abstractmethod
    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        """Archive dead letters as discarded. If a dead letter blocked its key, the later events of the key continue."""

    @abstractmethod
    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        """End a waiting event as DEAD. If the event is running, its worker cancels it at the next lease renewal."""

    @abstractmethod
    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        """Return the entries after the cursor. If `about` is given, return only the entries of this aggregate id.

        A reader never misses or repeats an entry, even if transactions commit in another order than they began. An
        entry comes after all entries that its transaction could have read.
        """

    @abstractmethod
    async def log_end(self) -> LogCursor:
        """Return the cursor of the newest entry that readers can see."""

    @abstractmethod
    async def keeps_log_after(self, cursor: LogCursor) -> bool:
        """Return False if retention may have removed entries after the cursor, or if another store made the cursor."""

    @abstractmethod
    async def log_lag(self) -> timedelta:
        """Return the age of the oldest open transaction that holds back newer log entries, or zero."""

    @abstractmethod
    async def retain(self, retention: Retention) -> RetentionReport:
        """Create partitions for the next days, and remove everything that is older than the retention."""

    @abstractmethod
    async def pins(self) -> list[Pin]:
        """Return everything that keeps vacuum from removing old row versions, oldest first."""


async def read_log_to_end(operations: Operations, about: str, after: LogCursor) -> tuple[list[LogEntry], LogCursor]:
    """Return all entries of an aggregate id after a cursor, and the cursor of the last one."""
    entries: list[LogEntry] = []
    while page := await operations.read_log(after, _PAGE_SIZE, about):
        entries += [logged.entry for logged in page]
        after = page[-1].cursor
        if len(page) < _PAGE_SIZE:
            break
    return entries, after
