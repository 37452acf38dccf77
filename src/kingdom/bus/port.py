"""The interface of the bus: `Bus` and `Transaction`, which every backend implements."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import STORE_KEY, Envelope
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import AnyOutcome, Dead, Defer, Done, Release, Retry
from kingdom.bus.record import Record, RecordKind, RecordQuery, refuse_unstorable, refuse_unstorable_event, to_storable
from kingdom.bus.stream import Stream, Topology
from kingdom.bus.telemetry import add_trace_context
from kingdom.errors import Conflict, Misconfigured

# The longest error text that is stored, in characters.
_TEXT_MAX = 4000
_log = structlog.get_logger("kingdom.bus")


class EventCopy(msgspec.Struct, frozen=True, gc=False):
    """The copy of an envelope for one stream. It is not delivered before the time `at`."""

    stream: Stream
    envelope: Envelope
    at: datetime | None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one delivery as a transaction writes it. If the outcome is a Retry, its waiting time is set."""

    stream: Stream
    position: int
    token: int
    ordering_key: tuple[str, str] | None
    outcome: AnyOutcome


class Put(msgspec.Struct, frozen=True, gc=False):
    """A record to store. `expected` is the version that the stored record must still have."""

    record: Record
    expected: int


@dataclass(slots=True)
class TransactionChanges:
    """Everything that one transaction writes. `duplicates` are copies that their stream already has."""

    puts: dict[tuple[str, str], Put] = field(default_factory=dict)
    copies: dict[tuple[str, UUID], EventCopy] = field(default_factory=dict)
    settlements: dict[int, Settlement] = field(default_factory=dict)
    entries: list[LogEntry] = field(default_factory=list)
    duplicates: list[EventCopy] = field(default_factory=list)
    # For each put: its key, and the earlier put that it replaced. A rollback restores the earlier put.
    replaced: list[tuple[tuple[str, str], Put | None]] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)

    @property
    def only_done(self) -> bool:
        """Return whether the transaction only settles unordered events of one lease as done."""
        if not self.settlements or self.puts or self.copies or self.entries:
            return False
        settled = self.settlements.values()
        return len({each.token for each in settled}) == 1 and all(
            each.ordering_key is None and type(each.outcome) is Done for each in settled
        )

    def savepoint(self) -> "Savepoint":
        """Return a point to roll back to."""
        return Savepoint(
            len(self.copies),
            len(self.settlements),
            len(self.entries),
            len(self.duplicates),
            len(self.replaced),
            len(self.after_commit),
        )

    def roll_back_to(self, savepoint: "Savepoint") -> None:
        """Remove everything that was collected after the savepoint."""
        while len(self.replaced) > savepoint.replaced:
            key, earlier = self.replaced.pop()
            if earlier is None:
                del self.puts[key]
            else:
                self.puts[key] = earlier
        while len(self.copies) > savepoint.copies:
            self.copies.popitem()
        while len(self.settlements) > savepoint.settlements:
            self.settlements.popitem()
        del self.entries[savepoint.entries :]
        del self.duplicates[savepoint.duplicates :]
        del self.after_commit[savepoint.after_commit :]


class Savepoint(msgspec.Struct, frozen=True, gc=False):
    """The length of each collection of a TransactionChanges at some moment."""

    copies: int
    settlements: int
    entries: int
    duplicates: int
    replaced: int
    after_commit: int


class Transaction(ABC):
    """A transaction over records, events, settlements, dedup keys and log entries.

    Writes are collected in `changes`. At the end of the block they are applied in an order that is the same for all
    transactions, so that these do not deadlock. Reads include what the block has put. Only `once` acts immediately: a
    caller that takes several keys must always take them in the same order, to avoid deadlocks.

    A backend implements `_read`, `_read_many`, `_search` and `_take_key`. At the end of the block, the backend applies
    `changes` and calls `run_after_commit`. This class does everything else.
    """

    def __init__(self, topology: Topology, kinds: Mapping[str, RecordKind], held: Sequence[Delivery]) -> None:
        # The deliveries that the caller wanted to lock and that are still leased.
        self.held = tuple(held)
        # The time at which `held` was read. It is the time of the store, so it is comparable between hosts.
        self.held_at: datetime | None = None
        self.changes = TransactionChanges()
        self.dedup_keys_taken = 0
        # Records that `read_ahead` has read; None for a record that does not exist.
        self._read_ahead: dict[tuple[str, str], Record | None] = {}
        # The results of the queries that `find_ahead` has run.
        self._found_ahead: dict[RecordQuery, list[Record]] = {}
        self._topology = topology
        self._kinds = kinds

    @property
    def duplicates(self) -> tuple[EventCopy, ...]:
        """Return the published copies that were already in their stream. The list is complete only after the block."""
        return tuple(self.changes.duplicates)

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> None:
        """Enqueue each envelope in every stream that gets it. If `at` is given, no stream delivers it earlier."""
        self.enqueue(copies_for_streams(self._topology, envelopes, at))

    def enqueue(self, copies: Iterable[EventCopy]) -> None:
        """Enqueue copies in their streams."""
        for copy in copies:
            key = (copy.stream.name, copy.envelope.event_id)
            if key in self.changes.copies:
                self.changes.duplicates.append(copy)
            else:
                self.changes.copies[key] = copy

    async def settle(self, delivery: Delivery, outcome: AnyOutcome) -> None:
        """Set the outcome of a delivery. If it is not Done, release the later deliveries in `delivery.same_key`.

        They were claimed together with this one and must not overtake it.
        """
        self._settle(delivery, outcome)

    async def settle_all(self, outcomes: Mapping[Delivery, AnyOutcome]) -> None:
        """Set the outcomes of several deliveries, as `settle` does for one."""
        for delivery, outcome in outcomes.items():
            self._settle(delivery, outcome)

    def _settle(self, delivery: Delivery, outcome: AnyOutcome) -> None:
        stream, settlements = self._topology.stream(delivery.stream), self.changes.settlements
        key, token, position = delivery.ordering_key, delivery.token, delivery.position
        if isinstance(outcome, Done):
            settlements[position] = Settlement(stream, position, token, key, outcome)
            return
        settlements[position] = Settlement(stream, position, token, key, resolve_outcome(stream, delivery, outcome))
        for later in delivery.same_key:
            if later > position:
                settlements[later] = Settlement(stream, later, token, key, Release())

    async def get(self, kind: str, record_id: str) -> Record | None:
        """Return a record, including what this transaction has put."""
        put = self.changes.puts.get((kind, record_id))
        if put:
            return put.record
        if (kind, record_id) in self._read_ahead:
            return self._read_ahead[kind, record_id]
        return await self._read(kind, record_id)

    async def read_ahead(self, keys: Collection[tuple[str, str]]) -> None:
        """Read several records in one step. A later `get` of these records does not read them again."""
        found = await self._read_many(list(keys))
        self._read_ahead |= dict.fromkeys(keys) | {(record.kind, record.id): record for record in found}

    async def put(self, record: Record) -> Record:
        """Store a record and return it with its new version. The commit fails if the stored version has changed."""
        kind = self._kind(record.kind)
        if record.state not in kind.directories:
            raise Misconfigured(f"{record.kind} has no state {record.state!r}; states: {sorted(kind.directories)}")
        if STORE_KEY in record.doc:
            raise Misconfigured(
                f"{record.kind} {record.id}: the field name {STORE_KEY!r} is reserved for the store; rename the field"
            )
        if record.indexed:
            for index in record.indexed:
                kind.index_number(index)
            refuse_unstorable(f"{record.kind} {record.id}: indexed", record.indexed)
        refuse_unstorable(f"{record.kind} {record.id}: doc", record.doc)
        earlier = self.changes.puts.get((record.kind, record.id))
        if earlier and earlier.record.version != record.version:
            raise Conflict(f"{record.kind} {record.id} was put twice from different versions: read it again")
        expected = earlier.expected if earlier else record.version
        stored = record.replace(version=expected + 1)
        self.changes.replaced.append(((record.kind, record.id), earlier))
        self.changes.puts[record.kind, record.id] = Put(stored, expected)
        return stored

    async def find(self, query: RecordQuery) -> list[Record]:
        """Return matching records, including what this transaction has put."""
        if query.index is not None:
            self._kind(query.kind).index_number(query.index)
        puts = [put.record for (kind, _), put in self.changes.puts.items() if kind == query.kind]
        changed = {record.id for record in puts}
        wider = replace(query, limit=query.limit + len(changed)) if changed else query
        stored = self._found_ahead.get(wider)
        if stored is None:
            stored = await self._search(wider)
        found = [record for record in stored if record.id not in changed]
        found += [record for record in puts if query.matches(record)]
        if puts:
            found.sort(
                key=lambda r: (r.due_at, r.id) if query.due_by and r.due_at else (r.id,), reverse=query.descending
            )
        return found[: query.limit]

    async def find_ahead(self, queries: Sequence[RecordQuery]) -> None:
        """Run several queries in one step, if the store can. A later `find` of the same query uses the result."""
        self._found_ahead |= await self._search_many([query for query in queries if query not in self._found_ahead])

    async def once(self, scope: str, key: str, keep: timedelta) -> bool:
        """Take a dedup key. Return True only for the first caller within `keep`."""
        taken = await self._take_key(scope, key, keep)
        self.dedup_keys_taken += taken
        return taken

    async def append(self, *entries: LogEntry) -> None:
        """Append entries to the log."""
        for entry in entries:
            refuse_unstorable(f"{entry.type}: data", entry.data)
        self.changes.entries.extend(entries)

    def _kind(self, name: str) -> RecordKind:
        kind = self._kinds.get(name)
        if kind is None:
            raise Misconfigured(f"record kind {name!r} is not declared; declared: {sorted(self._kinds)}")
        return kind

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call a function in this process after the commit, unless the process dies before.

        The function is not called if this transaction is part of the caller's own database transaction, because only
        the caller knows when the database transaction commits.
        """
        self.changes.after_commit.append(call)

    def run_after_commit(self) -> None:
        """Call the functions that were given to `after_commit`. A backend calls this method after the commit."""
        for call in self.changes.after_commit:
            try:
                call()
            except Exception:  # noqa: BLE001 - the commit stands, and the other functions must still run
                _log.exception("a call after the commit failed")

    @abstractmethod
    async def _read(self, kind: str, record_id: str) -> Record | None:
        """Return one stored record."""

    @abstractmethod
    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        """Return the stored records among the given (kind, id) pairs."""

    @abstractmethod
    async def _search(self, query: RecordQuery) -> list[Record]:
        """Return the stored records that match a query, in the order of the query and up to its limit."""

    async def _search_many(self, queries: Sequence[RecordQuery]) -> Mapping[RecordQuery, list[Record]]:
        """Return the results of those queries that the store runs together; by default none."""
        del queries
        return {}

    @abstractmethod
    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        """Take a dedup key immediately. Return False if it was already taken. A rollback frees the key."""


def copies_for_streams(topology: Topology, envelopes: Sequence[Envelope], at: datetime | None) -> list[EventCopy]:
    """Return a copy of each envelope for every stream that gets it. Refuse what cannot be stored."""
    copies = []
    for envelope in add_trace_context(envelopes):
        refuse_unstorable_event(envelope)
        copies += [EventCopy(topology.stream(name), envelope, at) for name in topology.route(envelope)]
    return copies


def resolve_outcome(stream: Stream, delivery: Delivery, outcome: AnyOutcome) -> AnyOutcome:
    """Set the wait of a Retry, or turn it into Dead if no attempt is left. Make all texts storable."""
    match outcome:
        case Retry(after, code, message) if delivery.attempt < delivery.max_attempts:
            wait = stream.retry.delay(delivery.attempt) if after is None else after
            return Retry(wait, _storable_text(code), _storable_text(message))
        case Retry(_, code, message):
            return Dead(_storable_text(message) or "every attempt failed", _storable_text(code))
        case Dead(message, code):
            return Dead(_storable_text(message), _storable_text(code))
        case Defer():
            return replace(outcome, reason=_storable_text(outcome.reason))
    return outcome


def _storable_text(text: str) -> str:
    """Return an error text without characters that cannot be stored, shortened if it is too long."""
    return str(to_storable(text[:_TEXT_MAX]))


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The result of a renewal: the tokens of the leases that are still held, and the positions to cancel."""

    alive: frozenset[int]
    cancelled: frozenset[int]


class Bus(ABC):
    """Durable delivery, at least once. Events are delivered under leases, and only the newest holder can settle them.

    A backend implements the abstract methods and sets the five attributes below. `publish`, the worker, retries,
    effects and the daily sequences use only these, so they work with every backend.
    """

    # True if a transaction of the bus can be part of the caller's own database transaction.
    joins_callers_transaction: bool
    # True if workers on several hosts can share the store.
    spans_hosts: bool
    # True if a document that a person drops into a directory becomes a record; see `Adoption`.
    adopts_dropped_files: bool
    # True if commits are serialized. An open transaction then holds no locks, and detects conflicts at its commit.
    has_one_writer: bool
    # How long a transaction may be idle before the store aborts it.
    idle_limit: timedelta

    def __init__(self, topology: Topology, kinds: Sequence[RecordKind]) -> None:
        self.topology = topology
        self.kinds = {kind.name: kind for kind in kinds}

    @abstractmethod
    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction and lock the deliveries in `hold`. Its `held` lists those that are still leased.

        An `optimistic` transaction may check the leases later: with its first read, or when it commits. Until then
        `held` lists all deliveries. If one is no longer leased, the transaction raises LeaseLost and writes nothing.
        """

    @abstractmethod
    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Take up to `limit` due events of one stream under one new lease."""

    @abstractmethod
    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases. `leases` has a duration for each token. The call blocks, so the worker uses another thread."""

    @abstractmethod
    async def reap(self) -> int:
        """Requeue the events of expired leases, and return the number of these events."""

    @abstractmethod
    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait until one of the streams may have due events, but no longer than `at_most`.

        The wait in progress ends when a claim may have left due events, and when a settlement has made an event due,
        such as the next event of a key. If no wait is in progress, the next one ends at once.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every connection and file. Closing again has no effect."""

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> tuple[EventCopy, ...]:
        """Publish envelopes in one transaction. Return the copies that were already in their stream."""
        async with self.transaction() as transaction:
            await transaction.publish(*envelopes, at=at)
        return transaction.duplicates
