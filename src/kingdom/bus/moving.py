"""Moving house: everything a store holds, thing by thing, so that another kind of store can go on with it."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec


class Item(msgspec.Struct, frozen=True, kw_only=True, tag_field="item", rename="camel", forbid_unknown_fields=True):
    """One thing that moves."""


class Event(Item, frozen=True, kw_only=True, tag="event"):
    """One event in one stream, open or ended; none is in flight.

    `ordered` means that it stands in the line of its key. An open one without `due_at` waits there for its turn.
    """

    stream: str
    position: int
    ordered: bool
    envelope: dict[str, Any]
    status: Literal["PENDING", "DEAD", "DONE", "DISCARDED"]
    attempt: int
    max_attempts: int
    crash_count: int
    token: int
    created_at: datetime
    cancel_requested: bool = False
    not_before: datetime | None = None
    due_at: datetime | None = None
    last_attempt_at: datetime | None = None
    processed_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    history: list[dict[str, Any]] = msgspec.field(default_factory=list)
    event_id_given: bool = False

    def __post_init__(self) -> None:
        if self.status == "PENDING" and self.due_at is None and not self.ordered:
            raise ValueError(f"event {self.position} of {self.stream} is open, stands in no line and is never due")
        if (self.status == "PENDING") != (self.processed_at is None):
            raise ValueError(f"event {self.position} of {self.stream} is {self.status}, its processedAt says otherwise")


class Block(Item, frozen=True, kw_only=True, tag="block"):
    """A key of an ordered stream that a DEAD event keeps from going on."""

    stream: str
    key: str
    blocked_by: int


class StoredRecord(Item, frozen=True, kw_only=True, tag="record"):
    """A record with the moments that retention goes by."""

    kind: str
    id: str
    version: int
    state: str
    owner: str | None
    due_at: datetime | None
    doc: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None


class DedupKey(Item, frozen=True, kw_only=True, tag="dedupKey"):
    """A key that `once` has given away."""

    scope: str
    key: str
    expires_at: datetime


class Pause(Item, frozen=True, kw_only=True, tag="pause"):
    """A stream that an operator has stopped."""

    stream: str
    reason: str
    actor: str
    since: datetime


class Entry(Item, frozen=True, kw_only=True, tag="logEntry"):
    """A log entry, without its cursor, since every store counts in its own way.

    Retention goes by `logged_at`, or by `at` in a store that does not know when it was written.
    """

    type: str
    actor: str
    data: dict[str, Any]
    at: datetime
    trace_id: str
    aggregate_type: str
    aggregate_id: str
    logged_at: datetime | None = None


AnyItem: TypeAlias = Event | Block | StoredRecord | DedupKey | Pause | Entry
_NUMBERS: Mapping[type[Item], str] = {
    Block: "blocked_keys",
    StoredRecord: "records",
    DedupKey: "dedup_keys",
    Pause: "paused_streams",
    Entry: "log_entries",
}
_EVENT_NUMBERS = {"PENDING": "open_events", "DEAD": "dead_events", "DONE": "ended_events", "DISCARDED": "ended_events"}


class Census(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How many things of each kind there are, counted exactly."""

    open_events: int = 0
    dead_events: int = 0
    ended_events: int = 0
    blocked_keys: int = 0
    records: int = 0
    dedup_keys: int = 0
    paused_streams: int = 0
    log_entries: int = 0

    @property
    def total(self) -> int:
        """Return how many things there are in all."""
        return sum(self.numbers().values())

    def numbers(self) -> dict[str, int]:
        """Return the number of each kind by the name that people read."""
        return {name.replace("_", " "): getattr(self, name) for name in self.__struct_fields__}

    def __str__(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in self.numbers().items() if number) or "nothing"

    def difference(self, other: "Census") -> str:
        """Return in words where another count differs, or nothing."""
        mine, theirs = self.numbers(), other.numbers()
        return ", ".join(f"{mine[name]} {name} against {theirs[name]}" for name in mine if mine[name] != theirs[name])


class Tally:
    """Counts things as they pass."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def add(self, item: AnyItem) -> None:
        """Count one more."""
        self._numbers[_EVENT_NUMBERS[item.status] if isinstance(item, Event) else _NUMBERS[type(item)]] += 1

    @property
    def census(self) -> Census:
        """Return what was counted so far."""
        return Census(**self._numbers)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What moves, and the highest numbers that were ever given: positions and tokens only grow, also after a move."""

    census: Census
    last_position: int
    last_token: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything in a store at one moment; `items` can be read once."""

    manifest: Manifest
    items: AsyncIterator[AnyItem]


class Movable(ABC):
    """The fourth port, for moving: a store that can give everything away, or begin with what another one held."""

    # What kind of store it is, for people.
    store: ClassVar[str]

    @abstractmethod
    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Hold one consistent snapshot for the length of the block; log entries come in their order.

        Expired leases are given back first. Refuses with Transient while events are in flight.
        """

    @abstractmethod
    async def take_in(self, items: AsyncIterable[AnyItem], manifest: Manifest) -> Census:
        """Write everything into this store and return what was counted in it afterwards.

        Refuses with Permanent, and keeps nothing, where the store is not empty, where an item cannot be kept and where
        the count is not the manifest's. Items come in any order, but the log in its own.
        """
