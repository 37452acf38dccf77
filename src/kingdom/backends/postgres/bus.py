"""The Bus on PostgreSQL."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, LiteralString, Self, TypeVar

import msgspec
import psycopg
import structlog
from psycopg import AsyncConnection, IsolationLevel
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads

from kingdom.backends.postgres.connection import Connection, Pool, reaching
from kingdom.backends.postgres.faults import translated
from kingdom.backends.postgres.open_leases import OpenLeases, closing
from kingdom.backends.postgres.pace import Pace
from kingdom.backends.postgres.queries import DEFAULT_SCHEMA, load_queries
from kingdom.backends.postgres.rows import entry_rows, read_deliveries
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.backends.postgres.wakeup import Wakeups
from kingdom.bus.delivery import Delivery
from kingdom.bus.log import LOST_TRANSACTIONS, LogEntry
from kingdom.bus.outcome import Release
from kingdom.bus.port import Bus, LeaseRenewal, Settlement
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.errors import KingdomError, LeaseLost, Misconfigured, Unavailable

# Any constant will do, as long as it never changes: "tokens" in ASCII.
_TOKEN_LOCK = 0x746F6B656E73
_FULL_REAP_SECONDS = 60.0
_POOL_SECONDS_MIN = 10
# The pool waits twice as long before each further attempt: after this time it begins again, at once.
_RECONNECT_SECONDS = 5
# No claim and no reap waits for others, so one that takes longer has lost its server, though the network answers.
_ANSWER_SECONDS = 30.0
_RENEWAL_ANSWER_SECONDS = 5.0
# A renewal that waits for a lock must tell in time that it did not come through.
_RENEWAL_PATIENCE: LiteralString = "SET statement_timeout = 2000"
_DEFAULT_IDLE_LIMIT = timedelta(seconds=30)
# Each statement must see what was committed before it, whatever the default of the database or the role is.
_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED"
# Generic plans are safe with these statements and spare planning; one that was made while a table was small must not
# read it whole when it has grown; and nothing here runs long enough to be worth compiling.
_SETTINGS: tuple[LiteralString, ...] = (
    "SET default_transaction_isolation = 'read committed'",
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET jit = off",
)
_Answer = TypeVar("_Answer")
_log = structlog.get_logger(__name__)


class PostgresBus(Bus):
    """Events, leases and records in one schema of one database.

    `through_pgbouncer` gives up prepared statements and session settings; `listen_dsn` then names a direct way to
    the server for wake-ups, without which the bus only polls.
    """

    joins_callers_transaction = True
    spans_hosts = True
    adopts_dropped_files = False
    has_one_writer = False

    def __init__(
        self,
        dsn: str,
        topology: Topology,
        kinds: Sequence[RecordKind] = (),
        *,
        schema: str = DEFAULT_SCHEMA,
        connections: int = 8,
        idle_limit: timedelta = _DEFAULT_IDLE_LIMIT,
        through_pgbouncer: bool = False,
        listen_dsn: str | None = None,
    ) -> None:
        super().__init__(topology, kinds)
        # A caller who waits longer for the server waits as long for a place in the pool.
        with translated():
            self.dsn = reaching(dsn)
            self._pool_seconds = max(_POOL_SECONDS_MIN, timeout_from_conninfo(conninfo_to_dict(self.dsn)))
        self.schema = schema
        self.queries = load_queries(schema)
        self.pool = Pool(
            self.dsn,
            connection_class=Connection,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": None if through_pgbouncer else 1,
            },
            min_size=1,
            max_size=connections,
            timeout=self._pool_seconds,
            reconnect_timeout=_RECONNECT_SECONDS,
            reconnect_failed=Pool.check,
            configure=self._configure,
            open=False,
        )
        self.idle_limit = idle_limit
        self._idle_limit_ms = round(idle_limit.total_seconds() * 1000)
        # Behind PgBouncer a session setting would leak into other clients' transactions.
        limit = f"SET LOCAL idle_in_transaction_session_timeout = {self._idle_limit_ms:d}"
        self._opening: tuple[LiteralString, ...] = (_BEGIN, limit) if through_pgbouncer else (_BEGIN,)
        self._through_pgbouncer = through_pgbouncer
        listen = listen_dsn if through_pgbouncer else dsn
        self._wakeups = Wakeups(f"kingdom_{schema}", self._notify, listen and reaching(listen))
        self._paces: dict[str, Pace] = defaultdict(Pace)
        self._leases = OpenLeases()
        self._highest_token = 0
        self._reap_from = 0
        self._next_full_reap = 0.0
        self._renewal: psycopg.Connection[DictRow] | None = None
        self._renewal_lock = threading.Lock()

    async def __aenter__(self) -> Self:
        with translated():
            # The pool would try in silence until its time is over; one plain connection tells at once what is wrong.
            await (await AsyncConnection.connect(self.dsn)).close()
            try:
                await self.pool.open(wait=True, timeout=self._pool_seconds)
            except BaseException:
                # Nobody leaves a block that was never entered.
                await self.pool.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give settled leases back and close every connection."""
        try:
            await self._wakeups.close()
            if self._leases.closed and not self.pool.closed:
                # What is not closed here expires by itself, and the reaper finds nothing in it.
                with suppress(KingdomError), translated():
                    await self._execute("close_leases", closing(self._leases.take_closed()))
        finally:
            await self.pool.close()
            await asyncio.to_thread(self._close_renewal)

    @asynccontextmanager
    async def transaction(self, hold: Sequence[Delivery] = ()) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction on a pooled connection; see the port."""
        with translated():
            connection = await self.pool.getconn()
        transaction = PostgresTransaction(
            connection,
            self.queries,
            self.topology,
            self.kinds,
            self._opening,
            may_skip_opening=not self._through_pgbouncer,
        )
        try:
            await transaction.hold(hold)
            yield transaction
            await transaction.apply(commit=True)
        except LeaseLost as lost:
            ours: list[Delivery | Settlement] = [*hold, *transaction.changes.settlements.values()]
            self._leases.settle(item for item in ours if item.position in lost.positions)
            raise
        finally:
            try:
                # Whatever was left open is rolled back here; after a commit there is nothing.
                with suppress(psycopg.Error):
                    await connection.rollback()
            finally:
                # A second cancellation may hit the rollback; the pool closes what it gets back half done.
                await self.pool.putconn(connection)
        self._leases.settle(transaction.changes.settlements.values())
        self._wakeups.published({copy.stream.name for copy in transaction.changes.copies.values()})
        transaction.run_after_commit()

    @asynccontextmanager
    async def join(self, connection: AsyncConnection[Any]) -> AsyncIterator[PostgresTransaction]:
        """Offer the Transaction inside the caller's own; applied at the end of the block, committed by the caller.

        The caller's commit comes later, so no wake-up is sent: polling finds the events, or `nudge` after it.
        """
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            raise Misconfigured("join needs a transaction: this connection commits each statement by itself")
        transaction = PostgresTransaction(
            connection, self.queries, self.topology, self.kinds, (), may_skip_opening=False
        )
        yield transaction
        await transaction.apply(commit=False)
        for settled in transaction.changes.settlements.values():
            # The caller may still roll back, so only the reaper may end this lease.
            self._leases.pop(settled.token, None)

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim due events; see the port."""
        declared, pace = self.topology.stream(stream), self._paces[stream]
        bound, heads = pace.lower_bound(time.monotonic()), pace.heads(limit)
        closed = self._leases.take_closed()
        parameters = {
            "stream": stream,
            "limit": limit,
            "heads": heads,
            "worker": worker,
            "lease": declared.lease,
            "watermark": bound,
            **closing(closed),
        }
        # Concurrent claims may answer in any order, but none with a token that was known before it was asked.
        known = self._highest_token
        started = time.monotonic()
        try:
            with translated():
                rows = await self._execute("claim_ordered" if declared.ordered else "claim", parameters, lift=True)
        except BaseException:
            self._leases.closed |= closed
            raise
        deliveries = read_deliveries(stream, rows)
        now = time.monotonic()
        runs = len({d.ordering_key or d.position for d in deliveries})
        alone = bool(deliveries) and deliveries[0].suspect
        full = alone or len(rows) >= limit or (declared.ordered and runs >= heads)
        due = [row["due_at"] for row in rows if row["due_at"]]
        pace.claimed(due, full=full, bound=bound, took=now - started, now=now)
        if declared.ordered and not alone:
            pace.learn_runs(runs=runs, events=len(deliveries), limit=limit)
        if deliveries:
            token = deliveries[0].token
            self._leases.hold(token, {d.position for d in deliveries})
            self._highest_token = max(known, token, self._highest_token)
            if token <= known:
                # A pooler hid a failover. Targets that honour a fence have seen a higher one, and would refuse this.
                with translated():
                    async with self._connection_that_answers() as connection:
                        await self._lift_tokens(connection)
                async with self.transaction() as transaction:
                    for delivery in deliveries:
                        await transaction.settle(delivery, Release())
                return []
        return deliveries

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases on a connection of its own; see the port."""
        lengths: dict[timedelta, list[int]] = defaultdict(list)
        for token, length in leases.items():
            lengths[length].append(token)
        alive: set[int] = set()
        cancelled: set[int] = set()
        with self._renewal_lock, translated(), self._on_renewal_connection() as connection:
            for length, tokens in lengths.items():
                with connection.transaction() if self._through_pgbouncer else nullcontext():
                    rows = connection.execute(self.queries["renew"], {"tokens": tokens, "lease": length}).fetchall()
                alive |= {row["token"] for row in rows}
                cancelled.update(*(row["cancelled"] for row in rows))
        return LeaseRenewal(frozenset(alive), frozenset(cancelled))

    async def reap(self) -> int:
        """Give back the events of expired leases; see the port."""
        now = time.monotonic()
        if now >= self._next_full_reap:
            self._reap_from, self._next_full_reap = 0, now + _FULL_REAP_SECONDS
        total = 0
        with translated():
            if not self._reap_from:
                total += await self._repair()
            while True:
                (row,) = await self._execute("reap", {"low": self._reap_from})
                total += int(row["events"])
                self._wakeups.published(row["streams"])
                if not row["leases"]:
                    break
            self._reap_from = (await self._execute("lowest_lease", {"low": self._reap_from}))[0]["token"]
        self._leases.forget_below(self._reap_from)
        return total

    async def _repair(self) -> int:
        """Give back events that no lease holds, and mend what a clock that was set back left waiting."""
        (orphans,) = await self._execute("reap_orphans", {})
        (mended,) = await self._execute("mend_clock", {})
        if mended["events"]:
            _log.warning("the clock of the server was set back: what waited by it begins anew", events=mended["events"])
        self._wakeups.published({*(orphans["streams"] or ()), *(mended["streams"] or ())})
        return int(orphans["events"])

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint; see the port."""
        await self._wakeups.wait(streams, at_most)

    def nudge(self, streams: Collection[str]) -> None:
        """Wake the workers of these streams; for callers who published on a joined connection and committed."""
        self._wakeups.published(streams)

    @contextmanager
    def _on_renewal_connection(self) -> Iterator[psycopg.Connection[DictRow]]:
        """Offer the connection of renewals; after any failure the next one begins on a new one."""
        try:
            yield self._renewal_connection()
        except psycopg.Error:
            if self._renewal:
                self._renewal.close()
            raise

    def _renewal_connection(self) -> psycopg.Connection[DictRow]:
        if self._renewal is None or self._renewal.closed:
            self._renewal = _RenewalConnection.connect(
                self.dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=None if self._through_pgbouncer else 1,
            )
            self._renewal.isolation_level = IsolationLevel.READ_COMMITTED
            for setting in () if self._through_pgbouncer else (*_SETTINGS, _RENEWAL_PATIENCE):
                self._renewal.execute(setting)
        return self._renewal

    def _close_renewal(self) -> None:
        with self._renewal_lock:
            if self._renewal:
                self._renewal.close()
                self._renewal = None

    async def _execute(self, name: str, parameters: Mapping[str, Any], *, lift: bool = False) -> list[DictRow]:
        async with self._connection_that_answers() as connection:
            if lift and not connection.has_lifted_tokens:
                await self._lift_tokens(connection)
            if self._through_pgbouncer:
                # No session is ours there, so its defaults are not either.
                async with connection.pipeline():
                    await connection.execute(_BEGIN)
                    cursor = await connection.execute(self.queries[name], parameters)
                    await connection.execute("COMMIT")
            else:
                cursor = await connection.execute(self.queries[name], parameters)
            return await cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def _connection_that_answers(self) -> AsyncIterator[Connection]:
        async with self.pool.connection() as connection:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    yield connection
            except TimeoutError:
                raise Unavailable(f"the database has not answered for {_ANSWER_SECONDS:g} s") from None

    async def _configure(self, connection: Connection) -> None:
        # Said with every BEGIN of the driver.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        if self._through_pgbouncer:
            return
        set_json_loads(msgspec.json.decode, connection)
        for setting in _SETTINGS:
            await connection.execute(setting)
        # A stopped process must not hold rows.
        await connection.execute(f"SET idle_in_transaction_session_timeout = {self._idle_limit_ms:d}")

    async def _notify(self, streams: list[str]) -> None:
        async with self.pool.connection() as connection:
            await connection.execute(
                "SELECT pg_notify(%s, stream) FROM unnest(%s::text[]) AS stream",
                (self._wakeups.channel, streams),
            )

    async def _lift_tokens(self, connection: Connection) -> None:
        """Let tokens go on above the clock and above all that this process has seen, whatever the server has lost."""
        seen = {"seen": self._highest_token}
        if await (await connection.execute(self.queries["lost_token"], seen)).fetchall():
            _log.error("the server has lost transactions that it had confirmed: tokens go on above", **seen)
            told = LogEntry(
                type="store.transactions_lost",
                actor="bus",
                data={"seen": str(self._highest_token)},
                aggregate_id=LOST_TRANSACTIONS,
            )
            await connection.execute(self.queries["append"], {"rows": entry_rows([told])})
        async with connection.transaction():
            await connection.execute(self.queries["lock_tokens"], {"lock": _TOKEN_LOCK})
            await connection.execute(self.queries["lift_tokens"], seen)
        connection.has_lifted_tokens = True


class _RenewalConnection(psycopg.Connection[DictRow]):
    """A connection that waits for no answer longer than a renewal is worth."""

    def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:
        """Do what the driver does."""
        return super().wait(gen, interval, timeout or _RENEWAL_ANSWER_SECONDS)
