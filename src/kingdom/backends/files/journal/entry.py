"""What a journal entry consists of: how every touched thing looks afterwards. Plain data."""

from typing import Any

import msgspec

PENDING, PROCESSING, DEAD = "PENDING", "PROCESSING", "DEAD"
# Why an event waits whose file cannot be had.
MISSING, DAMAGED, UNREADABLE = "missing", "damaged", "unreadable"


class Row(msgspec.Struct, array_like=True, gc=False):
    """Where one event stands in its stream; `key` is set where it stands in a line, `due` where it may be claimed."""

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
    # When our clock decided on `due`; None where the event is as it was published, or a caller has named the time.
    due_set_at: float | None = None
    # Whether a caller chose the id, and may publish it again.
    event_id_given: bool = False


class Lease(msgspec.Struct, rename="camel", gc=False):
    """A lease as its file shows it; `expires` counts on the clock of the boot that it names."""

    token: int
    worker: str
    stream: str
    positions: list[int]
    claimed_at: float
    expires_at: str
    expires: float
    boot: str
    cancelled: list[int] = []
    # Which process holds it; where that can be seen to have ended, nobody waits for the time.
    process: str = ""


class Ended(msgspec.Struct, array_like=True, gc=False):
    """An event that has ended, and its line in the file of the day."""

    stream: str
    position: int
    event_id: str
    day: str
    line: msgspec.Raw
    event_id_given: bool = False


class Card(msgspec.Struct, array_like=True):
    """Everything about a record but its document."""

    kind: str
    id: str
    version: int
    state: str
    owner: str | None
    due_at: float | None
    created_at: float
    updated_at: float
    ended_at: float | None


class Stored(msgspec.Struct, array_like=True):
    """A record as it shall be on disk, and where: whoever replays this may not know its kind."""

    card: Card
    doc: msgspec.Raw
    directory: str
    earlier_directory: str | None


class LogPart(msgspec.Struct, array_like=True):
    """Lines for the log, numbered from `first`; where `keep_as` is given, the file so far gets that name before."""

    first: int
    lines: list[msgspec.Raw]
    keep_as: str | None = None


class Pause(msgspec.Struct):
    """A stopped stream as its file shows it."""

    stream: str
    reason: str
    actor: str
    since: float


class Entry(msgspec.Struct, omit_defaults=True):
    """One transaction in the journal; applying it twice is the same as once."""

    rows: list[Row] = []
    bodies: dict[int, msgspec.Raw] = {}
    ended: list[Ended] = []
    vanished: list[tuple[str, int]] = []
    leases: list[Lease] = []
    closed: list[int] = []
    records: list[Stored] = []
    # Kind, directory and id.
    removed: list[tuple[str, str, str]] = []
    once: list[tuple[str, str, float]] = []
    log: LogPart | None = None
    pauses: list[Pause] = []
    resumed: list[str] = []
    # Up to here the journal was synced when this was written: no loss of power has taken anything before it.
    synced: int = 0
