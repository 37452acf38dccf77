"""The content of a journal entry: the new state of everything that a transaction changes."""

from typing import Any

import msgspec

from kingdom.bus.record import IndexValues

PENDING, PROCESSING, DEAD = "PENDING", "PROCESSING", "DEAD"
# Error codes of events whose file cannot be used.
MISSING, DAMAGED, UNREADABLE = "missing", "damaged", "unreadable"
FILE_PROBLEMS = frozenset({MISSING, DAMAGED, UNREADABLE})


class EventRow(msgspec.Struct, array_like=True, gc=False):
    """The state of one open or DEAD event.

    `token` is the token of its last lease, and `key` is None for an event that is not ordered. `due` is None for an
    event that is DEAD or behind the head of its key. `not_before` is the earliest delivery time that the publisher
    allows. `blocks` means that this DEAD event blocks its key.
    """

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
    # When this store chose `due`. It is None for an event that was only published, and if a caller chose `due`.
    due_set_at: float | None = None
    # Whether the publisher chose the event id. If so, it may publish the same id again.
    event_id_given: bool = False


class Lease(msgspec.Struct, rename="camel", gc=False):
    """A lease as its file shows it. `expires` is a time on the boot clock. It is valid until the boot id changes."""

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
    """An event that has ended, and its line for the archive file of `day`."""

    stream: str
    position: int
    event_id: str
    day: str
    line: msgspec.Raw
    event_id_given: bool = False


class RecordHeader(msgspec.Struct, array_like=True):
    """Everything about a record except its document. `index_1` to `index_3` are its values in the kind's indexes."""

    kind: str
    id: str
    version: int
    state: str
    index_1: str | None
    due_at: float | None
    created_at: float
    updated_at: float
    ended_at: float | None
    index_2: str | None = None
    index_3: str | None = None

    @property
    def index_values(self) -> IndexValues:
        """Return the values of the record in the order of the indexes."""
        return self.index_1, self.index_2, self.index_3


class RecordWrite(msgspec.Struct, array_like=True):
    """A record to write. It includes the directory, because the process that replays it may not know the kind."""

    header: RecordHeader
    doc: msgspec.Raw
    directory: str
    earlier_directory: str | None


class LogLines(msgspec.Struct, array_like=True):
    """Lines to append to the log, numbered from `first`. If `keep_as` is set, the current log first gets this name."""

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
    # The body of each event whose file is written, by position. A body is the JSON of an envelope.
    bodies: dict[int, msgspec.Raw] = {}
    ended: list[EndedEvent] = []
    # Events whose file a person has removed, as stream and position.
    vanished: list[tuple[str, int]] = []
    leases: list[Lease] = []
    # The tokens of leases that have ended.
    closed: list[int] = []
    records: list[RecordWrite] = []
    # Removed records, as kind, directory and id.
    removed: list[tuple[str, str, str]] = []
    # Taken dedup keys, as scope, key and expiry.
    once: list[tuple[str, str, float]] = []
    log: LogLines | None = None
    pauses: list[StreamPause] = []
    # Streams that are no longer paused.
    resumed: list[str] = []
    # The offset up to which the journal was synced when this entry was written. That part survives a power loss.
    synced: int = 0
