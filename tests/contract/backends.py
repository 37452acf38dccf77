"""The backends that the contract tests use. A new backend adds a class and an entry in BACKENDS; no test changes."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, LiteralString, NoReturn
from uuid import UUID

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import DictRow, dict_row

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files.journal.entry import EventRow
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.processes import holders_of
from kingdom.backends.postgres import PostgresBus, lease_renewals
from kingdom.backends.postgres import bus as postgres_bus
from kingdom.backends.postgres.faults import translate_errors
from kingdom.bus import Bus, Envelope, Operations, RecordKind, Topology, Transaction
from tests.contract.complete_log import CompleteLogOperations
from tests.contract.picture import Picture, Row
from tests.patience import PATIENCE_SECONDS

LONG = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with its own connection and transaction."""

    bus: PostgresBus
    connection: psycopg.AsyncConnection[Any]

    def join(self) -> AbstractAsyncContextManager[Transaction]:
        return self.bus.join(self.connection)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class BackendUnderTest(ABC):
    """One store, and what tests can do to it beyond the ports."""

    name: ClassVar[str]
    # The fixture with the location of a new store, as text that a child process can use too.
    place_fixture: ClassVar[str]
    # True if an id given by a publisher is also compared with finished events.
    knows_ended_ids: ClassVar[bool]
    # False if unrelated events would be in the way of those of a test.
    has_bystanders: ClassVar[bool] = True

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def open(
        self, topology: Topology, kinds: Collection[RecordKind], idle_limit: timedelta = LONG
    ) -> AbstractAsyncContextManager[Bus]:
        """Open one more bus on the store, independent of all others."""

    @abstractmethod
    def operations(self, bus: Bus) -> Operations:
        """Return operations whose log shows everything committed before, unless a caller keeps a transaction open."""

    @abstractmethod
    def picture(self) -> Picture:
        """Read the whole store in one snapshot."""

    @abstractmethod
    def expire(self, tokens: Collection[int]) -> None:
        """Expire leases now."""

    @abstractmethod
    def reset_shortcuts(self, bus: Bus) -> None:
        """Make the next claim and the next reap of a bus search the whole store."""

    @abstractmethod
    async def until_arrived(self, bus: Bus, stream: str) -> None:
        """Wait until the published events of a stream can be claimed."""

    @abstractmethod
    def clear(self) -> None:
        """Empty the store."""

    @abstractmethod
    def holders(self) -> list[int]:
        """Return the processes that the store would kill if they were stopped now."""

    @abstractmethod
    def close(self) -> None: ...

    # The methods below exist only if transactions run concurrently.

    def caller(self, _bus: Bus, *, isolation: IsolationLevel | None = None) -> AbstractAsyncContextManager[Caller]:
        """Open a transaction of a caller, which the bus can join."""
        self._cannot(f"join a caller's transaction (asked for {isolation})")

    def publishing(self, bus: Bus, event: Envelope) -> AbstractAsyncContextManager[None]:
        """Let the bus write an event, with all its locks, and keep the transaction open during the block."""
        self._cannot(f"hold the publishing of {event.type} by {bus}")

    def stalled_event(self, position: int) -> AbstractContextManager[None]:
        """Make all writers of this event wait until the block ends."""
        self._cannot(f"stall the event at {position}")

    def stalled_lease(self, token: int) -> AbstractContextManager[None]:
        """Make all writers of this lease wait, or skip it, until the block ends."""
        self._cannot(f"stall the lease {token}")

    def waiting(self) -> int:
        """Return how many transactions wait for another transaction."""
        self._cannot("wait for another transaction")

    def _cannot(self, what: str) -> NoReturn:
        pytest.skip(f"backend {self.name} cannot {what}")


class PostgresBackend(BackendUnderTest):
    name = "postgres"
    place_fixture = "dsn"
    knows_ended_ids = True
    bus_type: Callable[..., PostgresBus] = PostgresBus

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self._watcher: psycopg.Connection[DictRow] | None = None
        self._callers = 0

    @asynccontextmanager
    async def open(
        self, topology: Topology, kinds: Collection[RecordKind], idle_limit: timedelta = LONG
    ) -> AsyncIterator[Bus]:
        bus = self.bus_type(self.place, topology, tuple(kinds), idle_limit=idle_limit)
        with pytest.MonkeyPatch.context() as patch:
            # A renewal that has to wait, for a lock or for the processor, must not give up.
            patch.setattr(lease_renewals, "_TIMEOUT", f"SET statement_timeout = '{PATIENCE_SECONDS:.0f}s'")
            patch.setattr(lease_renewals, "_ANSWER_SECONDS", PATIENCE_SECONDS)
            patch.setattr(postgres_bus, "_ANSWER_SECONDS", PATIENCE_SECONDS)
            async with bus:
                yield bus

    def operations(self, bus: Bus) -> Operations:
        return CompleteLogOperations(_postgres(bus), lambda: self._callers > 0)

    def picture(self) -> Picture:
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            rows = self._fetch(_ROWS)
            ended: dict[Any, list[str]] = {}
            for row in self._fetch("SELECT event_id, stream FROM kingdom.outbox_archive"):
                ended.setdefault(row["event_id"], []).append(row["stream"])
            keys = self._fetch("SELECT stream, partition_key, blocked_by FROM kingdom.outbox_key")
            leases = self._fetch("SELECT token FROM kingdom.outbox_lease")
        return Picture(
            rows=[
                Row(line=(row["stream"], key) if (key := row.pop("key")) is not None else None, **row) for row in rows
            ],
            ended=ended,
            keys={(row["stream"], row["partition_key"]): row["blocked_by"] for row in keys},
            leases=frozenset(row["token"] for row in leases),
        )

    def expire(self, tokens: Collection[int]) -> None:
        self._connection.execute(
            "UPDATE kingdom.outbox_lease SET expires_at = clock_timestamp() - interval '1 s' WHERE token = ANY(%s)",
            [list(tokens)],
        )

    async def until_arrived(self, bus: Bus, stream: str) -> None:
        """Do nothing, because a published event is in the store."""

    def reset_shortcuts(self, bus: Bus) -> None:
        postgres = _postgres(bus)
        postgres._paces.clear()
        postgres._next_full_reap = 0.0

    def clear(self) -> None:
        self._connection.execute(
            "TRUNCATE kingdom.outbox_event, kingdom.outbox_lease, kingdom.outbox_key, kingdom.outbox_pause,"
            " kingdom.outbox_archive, kingdom.once_key, kingdom.record, kingdom.log, kingdom.run_text"
        )

    def holders(self) -> list[int]:
        """Return none, because the server aborts the transaction of a stopped process."""
        return []

    def close(self) -> None:
        if self._watcher:
            self._watcher.close()
            self._watcher = None

    @asynccontextmanager
    async def caller(self, bus: Bus, *, isolation: IsolationLevel | None = None) -> AsyncIterator[Caller]:
        connection = await psycopg.AsyncConnection.connect(self.place)
        async with connection:
            await connection.set_isolation_level(isolation)
            self._callers += 1
            try:
                yield Caller(_postgres(bus), connection)
                await connection.rollback()
            finally:
                self._callers -= 1

    @asynccontextmanager
    async def publishing(self, bus: Bus, event: Envelope) -> AsyncIterator[None]:
        postgres = _postgres(bus)
        with translate_errors():
            async with postgres.pool.connection() as connection, connection.transaction():
                async with postgres.join(connection) as transaction:
                    await transaction.publish(event)
                yield

    def stalled_event(self, position: int) -> AbstractContextManager[None]:
        return self._stalled("SELECT FROM kingdom.outbox_event WHERE id = %s FOR UPDATE", position)

    def stalled_lease(self, token: int) -> AbstractContextManager[None]:
        return self._stalled("SELECT FROM kingdom.outbox_lease WHERE token = %s FOR UPDATE", token)

    def waiting(self) -> int:
        rows = self._fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return len(rows)

    @contextmanager
    def _stalled(self, query: LiteralString, number: int) -> Iterator[None]:
        with psycopg.connect(self.place) as connection:
            connection.execute(query, [number])
            yield

    @property
    def _connection(self) -> psycopg.Connection[DictRow]:
        if self._watcher is None:
            self._watcher = psycopg.Connection.connect(self.place, autocommit=True, row_factory=dict_row)
        return self._watcher

    def _fetch(self, query: LiteralString) -> list[DictRow]:
        return self._connection.execute(query).fetchall()


class FilesBackend(BackendUnderTest):
    name = "files"
    place_fixture = "realm"
    knows_ended_ids = True

    @asynccontextmanager
    async def open(
        self, topology: Topology, kinds: Collection[RecordKind], idle_limit: timedelta = LONG
    ) -> AsyncIterator[Bus]:
        async with FilesBus(self.place, topology, tuple(kinds), idle_limit=idle_limit) as bus:
            yield bus

    def operations(self, bus: Bus) -> Operations:
        return FilesOperations(_files(bus))

    def picture(self) -> Picture:
        """Read the directories with a newly opened store."""
        store = Store(self.place, {})
        store.open()
        try:
            with store.exclusive() as plan:
                indexes = [plan.events.stream(name) for name in store.stream_names()]
                ended: dict[Any, list[str]] = {}
                for name in store.stream_names():
                    for line in store.tree.read_archive(name):
                        ended.setdefault(UUID(line.event["eventId"]), []).append(name)
                return Picture(
                    rows=sorted(
                        (_row(row) for index in indexes for row in index.rows.values()), key=lambda r: r.position
                    ),
                    ended=ended,
                    keys={
                        (index.name, key): queue.blocked_by for index in indexes for key, queue in index.queues.items()
                    },
                    leases=frozenset(plan.events.leases),
                )
        finally:
            store.close()

    def expire(self, tokens: Collection[int]) -> None:
        for token in tokens:
            path = Path(self.place, "bus", "leases", f"{token}.json")
            if path.exists():
                lease = json.loads(path.read_text())
                path.write_text(json.dumps({**lease, "expires": 0.0, "expiresAt": "2026-01-01T00:00:00+00:00"}))

    def reset_shortcuts(self, bus: Bus) -> None:
        """Do nothing, because the index knows everything."""

    async def until_arrived(self, bus: Bus, stream: str) -> None:
        """Do nothing, because a published event is in the store."""

    def clear(self) -> None:
        """Remove every file except those by which open buses notice that they must reload."""
        if not Path(self.place).exists():
            return
        store = Store(self.place, {})
        store.open()
        with store.exclusive() as plan:
            keep = {store.layout.bus, store.layout.lock, store.layout.host, store.layout.journal, store.layout.kinds}
            for path in (*Path(self.place).iterdir(), *Path(store.layout.bus).iterdir()):
                if str(path) not in keep:
                    shutil.rmtree(path)
            for directory in store.layout.fixed_directories():
                store.disk.make_directory(directory)
            store.skip_to(plan.offset + 1)
        store.close()

    def holders(self) -> list[int]:
        return holders_of(Path(self.place, "bus", "lock").stat())

    def close(self) -> None: ...

    @asynccontextmanager
    async def publishing(self, bus: Bus, event: Envelope) -> AsyncIterator[None]:
        store = Store(self.place, {})
        store.open()
        # Holding the lock is enough: changes under it are not written before the block ends.
        with store.exclusive():
            yield
        store.close()
        await bus.publish(event)


def _row(row: EventRow) -> Row:
    return Row(
        position=row.position,
        event_id=UUID(row.event_id),
        stream=row.stream,
        line=(row.stream, row.key) if row.key is not None else None,
        status=row.status,
        ready=row.due is not None,
        token=row.token,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        crash_count=row.crash_count,
    )


def _files(bus: Bus) -> FilesBus:
    assert isinstance(bus, FilesBus)
    return bus


_ROWS: LiteralString = """
SELECT id AS position, event_id, stream, CASE WHEN ordered THEN partition_key END AS key, status,
       isfinite(next_retry_at) AS ready, lease_token AS token, attempt_count AS attempt, max_attempts, crash_count
  FROM kingdom.outbox_event ORDER BY id
"""


def _postgres(bus: Bus) -> PostgresBus:
    assert isinstance(bus, PostgresBus)
    return bus


BACKENDS: dict[str, type[BackendUnderTest]] = {backend.name: backend for backend in (PostgresBackend, FilesBackend)}
