"""The content of a journal entry: the new state of everything that a transaction changes. Plain data."""

from typing import Any

import msgspec

PENDING, PROCESSING, DEAD = "PENDING", "PROCESSING", "DEAD"
# Error codes of events whose file cannot be used.
MISSING, DAMAGED, UNREADABLE = "missing", "damaged", "unreadable"


class EventRow(msgspec.Struct, array_like=True, gc=False):
    """The state of one open or DEAD event. `key` is set in an ordered stream, `due` once the event may be claimed."""

    stream: str
    position: int
    event_id: str
    key: str | None
    status: str
    due: float | None
    created_at: float
    max_attempts: int
    attempt: int = 0
    crash_count: int = 0
    token: int = 0
    not_before: float | None = None
    last_attempt_at: float | None = None
    processed_at: float | None = None
    cancel_requested: bool = False
    blocks: bool = False
    error_code: str | None = None
    error_message: str | None = None
    history: list[dict[str, Any]] | None = None
    # When this store chose `due`. None if the event is still as published, or if a caller chose the time.
    due_set_at: float | None = None
    # Whether the caller chose the id, and so may publish it again.
    event_id_given: bool = False


class Lease(msgspec.Struct, rename="camel", gc=False):
    """A lease as its file shows it. `expires` is a time on the boot clock of the boot named in `boot`."""

    token: int
    worker: str
    stream: str
    positions: list[int]
    claimed_at: float
    expires_at: str
    expires: float
    boot: str
    cancelled: list[int] = []
    # The process that holds the lease. Once it has ended, the lease counts as expired.
    process: str = ""


class EndedEvent(msgspec.Struct, array_like=True, gc=False):
    """An event that has ended, and its line in the archive file of that day."""

    stream: str
    position: int
    event_id: str
    day: str
    line: msgspec.Raw
    event_id_given: bool = False


class RecordHeader(msgspec.Struct, array_like=True):
    """Everything about a record except its document."""

    kind: str
    id: str
    version: int
    state: str
    owner: str | None
    due_at: float | None
    created_at: float
    updated_at: float
    ended_at: float | None


class RecordWrite(msgspec.Struct, array_like=True):
    """A record to be written, and its directory, because the process that replays it may not know its kind."""

    header: RecordHeader
    doc: msgspec.Raw
    directory: str
    earlier_directory: str | None


class LogLines(msgspec.Struct, array_like=True):
    """Lines to append to the log, numbered from `first`. `keep_as` renames the current log file first."""

    first: int
    lines: list[msgspec.Raw]
    keep_as: str | None = None


class StreamPause(msgspec.Struct):
    """A paused stream as its file shows it."""

    stream: str
    reason: str
    actor: str
    since: float


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """One transaction in the journal. Applying it twice has the same result as applying it once."""

    rows: list[EventRow] = []
    bodies: dict[int, msgspec.Raw] = {}
    ended: list[EndedEvent] = []
    vanished: list[tuple[str, int]] = []
    leases: list[Lease] = []
    closed: list[int] = []
    records: list[RecordWrite] = []
    # Kind, directory and id.
    removed: list[tuple[str, str, str]] = []
    once: list[tuple[str, str, float]] = []
    log: LogLines | None = None
    pauses: list[StreamPause] = []
    resumed: list[str] = []
    # How far the journal was synced when this entry was written. A power loss cannot remove anything before this.
    synced: int = 0
