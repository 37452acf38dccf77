"""Everything that a store holds, item by item, and the interface to export and import it."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias
from uuid import UUID

import msgspec


class Item(msgspec.Struct, frozen=True, kw_only=True, tag_field="item", rename="camel", forbid_unknown_fields=True):
    """One item of a store."""


class EventItem(Item, frozen=True, kw_only=True, tag="event"):
    """One event in one stream, open or finished, but never in flight.

    `ordered` means that events of the same key are handled in order. An open event without `due_at` waits for an
    earlier event of its key. `event_id_given` means that the publisher chose the id.
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
            raise ValueError(f"event {self.position} of {self.stream} is open and not ordered, but has no due time")
        if (self.status == "PENDING") != (self.processed_at is None):
            raise ValueError(
                f"event {self.position} of {self.stream} is {self.status}, which contradicts its processedAt"
            )


class BlockItem(Item, frozen=True, kw_only=True, tag="block"):
    """A key of an ordered stream that a DEAD event blocks."""

    stream: str
    key: str
    blocked_by: int


class RecordItem(Item, frozen=True, kw_only=True, tag="record", omit_defaults=True):
    """A record with its values in the indexes of its kind, and with the times that its retention uses."""

    kind: str
    id: str
    version: int
    state: str
    index_1: str | None = msgspec.field(name="owner")
    due_at: datetime | None
    doc: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    index_2: str | None = None
    index_3: str | None = None


class DedupKeyItem(Item, frozen=True, kw_only=True, tag="dedupKey"):
    """A dedup key that `once` has taken."""

    scope: str
    key: str
    expires_at: datetime


class PauseItem(Item, frozen=True, kw_only=True, tag="pause"):
    """A stream that an operator has paused."""

    stream: str
    reason: str
    actor: str
    since: datetime


class LogEntryItem(Item, frozen=True, kw_only=True, tag="logEntry"):
    """A log entry without its cursor, because each store numbers its entries itself.

    Retention uses `logged_at`, or `at` if the store does not know when the entry was written.
    """

    type: str
    actor: str
    data: dict[str, Any]
    at: datetime
    trace_id: str
    aggregate_type: str
    aggregate_id: str
    logged_at: datetime | None = None


class ReadPartitionItem(Item, frozen=True, kw_only=True, tag="readPartition"):
    """How far the consumer of a stream has read a partition of a topic. `handled` has ranges of offsets as text."""

    stream: str
    topic: str
    partition: int
    epoch: int
    handled: str


class CourierItem(Item, frozen=True, kw_only=True, tag="courier"):
    """The id by which topics know the store, and the last tick that its courier has sent."""

    store: UUID
    sent: int


class TopicItem(Item, frozen=True, kw_only=True, tag="topic"):
    """The number of partitions of a topic of the courier."""

    topic: str
    partitions: int


TransportItem: TypeAlias = ReadPartitionItem | CourierItem | TopicItem
AnyItem: TypeAlias = EventItem | BlockItem | RecordItem | DedupKeyItem | PauseItem | LogEntryItem | TransportItem
# The fields of ItemCounts that count each kind of item, and events by status.
_COUNT_FIELDS: Mapping[type[Item], str] = {
    BlockItem: "blocked_keys",
    RecordItem: "records",
    DedupKeyItem: "dedup_keys",
    PauseItem: "paused_streams",
    LogEntryItem: "log_entries",
    ReadPartitionItem: "transport_positions",
    CourierItem: "transport_positions",
    TopicItem: "transport_positions",
}
_EVENT_COUNT_FIELDS = {
    "PENDING": "open_events",
    "DEAD": "dead_events",
    "DONE": "ended_events",
    "DISCARDED": "ended_events",
}


class ItemCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The exact number of items of each kind."""

    open_events: int = 0
    dead_events: int = 0
    ended_events: int = 0
    blocked_keys: int = 0
    records: int = 0
    dedup_keys: int = 0
    paused_streams: int = 0
    log_entries: int = 0
    transport_positions: int = 0

    @property
    def total(self) -> int:
        """Return the number of all items."""
        return sum(self.numbers().values())

    def numbers(self) -> dict[str, int]:
        """Return the number of each kind by its name in messages."""
        return {name.replace("_", " "): getattr(self, name) for name in self.__struct_fields__}

    def __str__(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in self.numbers().items() if number) or "nothing"

    def difference(self, expected: "ItemCounts") -> str:
        """Describe where these counts differ from the expected counts. Return an empty text if all are equal."""
        found, wanted = self.numbers(), expected.numbers()
        return ", ".join(
            f"{found[name]} {name} instead of {wanted[name]}" for name in found if found[name] != wanted[name]
        )


class ItemCounter:
    """Counts items by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, item: AnyItem) -> None:
        """Count an item."""
        field = _EVENT_COUNT_FIELDS[item.status] if isinstance(item, EventItem) else _COUNT_FIELDS[type(item)]
        self._counts[field] += 1

    @property
    def counts(self) -> ItemCounts:
        """Return the counts so far."""
        return ItemCounts(**self._counts)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The item counts, and the highest position and token ever used. After an import, new numbers are higher."""

    census: ItemCounts
    last_position: int
    last_token: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything in a store at one moment. `items` can be read once."""

    manifest: Manifest
    items: AsyncIterator[AnyItem]


class StoreTransfer(ABC):
    """The interface to export everything from a store, and to import it into an empty store."""

    # The kind of store, for messages.
    store: ClassVar[str]

    @abstractmethod
    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Yield one consistent snapshot, which can be read during the block. Log entries come in their order.

        Expired leases are reaped first. Raises Transient if events are still in flight, or wait for a courier.
        """

    @abstractmethod
    async def import_items(self, items: AsyncIterable[AnyItem], manifest: Manifest) -> ItemCounts:
        """Write all items into this store, and return the counts of the store afterwards.

        Raises Permanent, and stores nothing, if the store is not empty, if an item cannot be stored, or if the counts
        differ from the manifest. Items may come in any order. Log entries are stored in the order in which they come.
        """
