"""The port: the one write handle, and durable delivery. Every backend implements these and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import structlog

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import STORE_KEY, Envelope
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Dead, Defer, Done, Release, Retry, Settlement
from kingdom.bus.record import Query, Record, RecordKind, refuse_unstorable, storable
from kingdom.bus.stream import Stream, Topology
from kingdom.bus.telemetry import stamped
from kingdom.errors import Conflict, Misconfigured

_TEXT_MAX = 4000
_log = structlog.get_logger("kingdom.bus")


class Copy(msgspec.Struct, frozen=True):
    """An envelope on its way to one stream, not before `at`."""

    stream: Stream
    envelope: Envelope
    at: datetime | None


class Settled(msgspec.Struct, frozen=True):
    """What a transaction decided about one delivery; a Retry here always knows its wait."""

    stream: Stream
    position: int
    token: int
    line: tuple[str, str] | None
    outcome: Settlement


@dataclass(frozen=True, slots=True)
class Put:
    """A record as it shall be stored, and the version that must still be there."""

    record: Record
    expected: int


@dataclass(slots=True)
class Changes:
    """Everything that one transaction writes, collected first and applied in one fixed order."""

    puts: dict[tuple[str, str], Put] = field(default_factory=dict)
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    settled: dict[int, Settled] = field(default_factory=dict)
    entries: list[LogEntry] = field(default_factory=list)
    duplicates: list[Copy] = field(default_factory=list)
    replaced: list[tuple[tuple[str, str], Put | None]] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)

    def mark(self) -> "Mark":
        """Return a point to go back to."""
        return Mark(
            len(self.copies),
            len(self.settled),
            len(self.entries),
            len(self.duplicates),
            len(self.replaced),
            len(self.afterwards),
        )

    def go_back(self, mark: "Mark") -> None:
        """Forget everything collected since the mark."""
        while len(self.replaced) > mark.replaced:
            key, earlier = self.replaced.pop()
            if earlier is None:
                del self.puts[key]
            else:
                self.puts[key] = earlier
        while len(self.copies) > mark.copies:
            self.copies.popitem()
        while len(self.settled) > mark.settled:
            self.settled.popitem()
        del self.entries[mark.entries :], self.duplicates[mark.duplicates :], self.afterwards[mark.afterwards :]


class Mark(NamedTuple):
    """How much a Changes held at some moment."""

    copies: int
    settled: int
    entries: int
    duplicates: int
    replaced: int
    afterwards: int


class Transaction(ABC):
    """Records, events, settlements, dedup keys and the log, all or nothing.

    Writes are collected and applied at the end of the block in one fixed order, so that they do not deadlock on each
    other; reads see what the block has put. Only `once` acts at once: who takes several keys takes them in one order.
    """

    def __init__(self, topology: Topology, kinds: Mapping[str, RecordKind], held: Sequence[Delivery]) -> None:
        self.held = tuple(held)
        # When `held` was read, by the clock of the store, which all hosts share.
        self.held_at: datetime | None = None
        self.changes = Changes()
        self.dedup_keys_taken = 0
        self._read_ahead: dict[tuple[str, str], Record | None] = {}
        self._topology = topology
        self._kinds = kinds

    @property
    def duplicates(self) -> tuple[Copy, ...]:
        """Return the published copies that their stream had already; complete once the block has ended."""
        return tuple(self.changes.duplicates)

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> None:
        """Enqueue each envelope on every stream it goes to, deliverable from `at` on."""
        for envelope in map(stamped, envelopes):
            refuse_unstorable(f"{envelope.type}: payload", envelope.payload)
            if envelope.attributes:
                refuse_unstorable(f"{envelope.type}: attributes", envelope.attributes)
            for name in self._topology.route(envelope):
                copy = Copy(self._topology.stream(name), envelope, at)
                key = (name, str(envelope.event_id))
                if key in self.changes.copies:
                    self.changes.duplicates.append(copy)
                else:
                    self.changes.copies[key] = copy

    async def settle(self, delivery: Delivery, outcome: Settlement) -> None:
        """Decide a delivery; where it must run again or died, the rest of its run is given back with it."""
        stream = self._topology.stream(delivery.stream)
        decided = _decide(stream, delivery, outcome)
        line, token = delivery.line, delivery.token
        self.changes.settled[delivery.position] = Settled(stream, delivery.position, token, line, decided)
        if not isinstance(decided, Done):
            for position in delivery.run:
                if position > delivery.position:
                    self.changes.settled[position] = Settled(stream, position, token, line, Release())

    async def get(self, kind: str, record_id: str) -> Record | None:
        """Return a record as this transaction sees it."""
        put = self.changes.puts.get((kind, record_id))
        if put:
            return put.record
        if (kind, record_id) in self._read_ahead:
            return self._read_ahead[kind, record_id]
        return await self._read(kind, record_id)

    async def read_ahead(self, keys: Collection[tuple[str, str]]) -> None:
        """Read records together that will be asked for one by one; they count as read now."""
        found = await self._read_many(list(keys))
        self._read_ahead |= dict.fromkeys(keys) | {(record.kind, record.id): record for record in found}

    async def put(self, record: Record) -> Record:
        """Store a record that is still at the version it was read at; returns it with its new version."""
        kind = self._kinds.get(record.kind)
        if kind is None:
            raise Misconfigured(f"record kind {record.kind!r} is not declared; declared: {sorted(self._kinds)}")
        if record.state not in kind.directories:
            raise Misconfigured(f"{record.kind} has no state {record.state!r}; states: {sorted(kind.directories)}")
        if STORE_KEY in record.doc:
            raise Misconfigured(f"{record.kind} {record.id}: the field {STORE_KEY!r} belongs to the store, rename it")
        refuse_unstorable(f"{record.kind} {record.id}: doc", record.doc)
        earlier = self.changes.puts.get((record.kind, record.id))
        if earlier and earlier.record.version != record.version:
            raise Conflict(f"{record.kind} {record.id} was put twice from different versions: read it again")
        expected = earlier.expected if earlier else record.version
        stored = replace(record, version=expected + 1)
        self.changes.replaced.append(((record.kind, record.id), earlier))
        self.changes.puts[record.kind, record.id] = Put(stored, expected)
        return stored

    async def find(self, query: Query) -> list[Record]:
        """Return matching records as this transaction sees them."""
        puts = [put.record for (kind, _), put in self.changes.puts.items() if kind == query.kind]
        changed = {record.id for record in puts}
        wider = replace(query, limit=query.limit + len(changed)) if changed else query
        found = [record for record in await self._search(wider) if record.id not in changed]
        found += [record for record in puts if query.matches(record)]
        if puts:
            found.sort(key=lambda r: (r.due_at, r.id) if query.due_by and r.due_at else (r.id,))
        return found[: query.limit]

    async def once(self, scope: str, key: str, keep: timedelta) -> bool:
        """Take a dedup key; True only for the first to ask within `keep`."""
        taken = await self._take_key(scope, key, keep)
        self.dedup_keys_taken += taken
        return taken

    async def append(self, *entries: LogEntry) -> None:
        """Write to the log."""
        for entry in entries:
            refuse_unstorable(f"{entry.type}: data", entry.data)
        self.changes.entries.extend(entries)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Have something called in this process once all of this is committed; a process that dies never calls it.

        Whoever joined a caller's own transaction is not called: only the caller knows when it commits.
        """
        self.changes.afterwards.append(call)

    def committed(self) -> None:
        """Call what waited for the commit; for backends."""
        for call in self.changes.afterwards:
            try:
                call()
            except Exception:  # noqa: BLE001 - it is committed: what one call cannot do must not keep the others from theirs
                _log.exception("a call after the commit failed")

    @abstractmethod
    async def _read(self, kind: str, record_id: str) -> Record | None: ...

    @abstractmethod
    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]: ...

    @abstractmethod
    async def _search(self, query: Query) -> list[Record]: ...

    @abstractmethod
    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool: ...


def _decide(stream: Stream, delivery: Delivery, outcome: Settlement) -> Settlement:
    """Turn a Retry into one that knows its wait, or into Dead where the attempts are used up."""
    match outcome:
        case Retry(after, code, message) if delivery.attempt < delivery.max_attempts:
            wait = stream.retry.delay(delivery.attempt) if after is None else after
            return Retry(wait, _text(code), _text(message))
        case Retry(_, code, message):
            return Dead(_text(message) or "every attempt failed", _text(code))
        case Dead(message, code):
            return Dead(_text(message), _text(code))
        case Defer():
            return replace(outcome, reason=_text(outcome.reason))
    return outcome


def _text(text: str) -> str:
    """Return an error's text as every store can keep it; an error about an error would hide the first one."""
    return str(storable(text[:_TEXT_MAX]))


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal: leases that are still ours, and positions somebody asked to cancel."""

    alive: frozenset[int]
    cancelled: frozenset[int]


class Bus(ABC):
    """Durable delivery: at least once, under leases that only the newest holder can settle."""

    # True where `transaction` covers a caller's own tables as well.
    joins_callers_transaction: bool
    # True where workers on several hosts can share the store.
    spans_hosts: bool
    # True where a document that a person drops into a directory becomes a record, as its kind's `adoption` says.
    adopts_dropped_files: bool
    # True where commits come one after another: an open transaction locks nothing and learns at its end who was faster.
    has_one_writer: bool
    # A transaction that does nothing for this long is thrown out by the store.
    idle_limit: timedelta

    def __init__(self, topology: Topology, kinds: Sequence[RecordKind]) -> None:
        self.topology = topology
        self.kinds = {kind.name: kind for kind in kinds}

    @abstractmethod
    def transaction(self, hold: Sequence[Delivery] = ()) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; with `hold` it locks those deliveries first, `held` lists the ones still ours."""

    @abstractmethod
    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Take up to `limit` due events of one stream under one new lease."""

    @abstractmethod
    def renew(self, leases: Mapping[int, timedelta]) -> Renewal:
        """Extend leases, each by its length; blocking, for a thread that no handler can starve."""

    @abstractmethod
    async def reap(self) -> int:
        """Give back the events of expired leases; returns how many."""

    @abstractmethod
    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Return when one of the streams may have work, or after `at_most`; a hint, never the truth."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection and file; to close again changes nothing."""

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> tuple[Copy, ...]:
        """Publish in a transaction of its own; returns the copies that were there already."""
        async with self.transaction() as transaction:
            await transaction.publish(*envelopes, at=at)
        return transaction.duplicates
