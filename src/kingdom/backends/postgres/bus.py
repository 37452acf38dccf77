"""The Bus on PostgreSQL."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, LiteralString, Self

import msgspec
import structlog
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo
from psycopg.errors import DivisionByZero, UniqueViolation
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from kingdom.backends.postgres.claim_pace import ClaimPace
from kingdom.backends.postgres.connection import Call, Connection, JoinedConnection, Rows, with_timeouts
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.lease_renewals import LeaseRenewals
from kingdom.backends.postgres.log_horizon import LogHorizon
from kingdom.backends.postgres.open_leases import OpenLeases, closing_parameters
from kingdom.backends.postgres.pool import Pool
from kingdom.backends.postgres.queries import DEFAULT_SCHEMA, load_queries
from kingdom.backends.postgres.rows import (
    COURIER_HINT,
    entry_rows,
    hint_of,
    read_deliveries,
    to_json,
)
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.backends.postgres.wakeup import PostgresWakeups
from kingdom.backends.postgres.writing import single_publish_statement
from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LOST_TRANSACTIONS, LogEntry
from kingdom.bus.outcome import Release
from kingdom.bus.port import Bus, EventCopy, LeaseRenewal, Settlement, copies_for_streams
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.errors import KingdomError, LeaseLost, Misconfigured, Unavailable

# The key of an advisory lock, which must never change: "tokens" in ASCII.
_TOKEN_LOCK = 0x746F6B656E73
# How often a reap looks at all leases. Other reaps start at the lowest token that had a lease at the last reap.
_FULL_REAP_SECONDS = 60.0
_POOL_SECONDS_MIN = 10
# The pool doubles its wait after each failed attempt to connect. After this time, the waits are short again.
_RECONNECT_SECONDS = 5
# These statements wait only for locks that are held for less time. If an answer takes longer, the server is lost.
_ANSWER_SECONDS = 30.0
_DEFAULT_IDLE_LIMIT = timedelta(seconds=30)
# Generic plans save planning time and suit these statements. Without sequential scans, a plan that was made for a small
# table is still fast when the table has grown. Bitmap scans would read all due events before a LIMIT, and never mark
# dead index entries. No statement runs long enough for JIT compilation.
SESSION_SETTINGS: tuple[LiteralString, ...] = (
    "SET default_transaction_isolation = 'read committed'",
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET jit = off",
)
_log = structlog.get_logger(__name__)


class PostgresBus(Bus):
    """Events, leases and records in one schema of one database.

    The server aborts a transaction that is idle for longer than `idle_limit`. `through_pgbouncer` avoids prepared
    statements and session settings. Wake-ups then need `listen_dsn`, the address of the server itself. Without it, the
    bus only polls.
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
        # If the DSN has a longer connect timeout, the pool waits as long.
        with translate_errors():
            self.dsn = with_timeouts(dsn)
            self._pool_seconds = max(_POOL_SECONDS_MIN, timeout_from_conninfo(conninfo_to_dict(self.dsn)))
        self.schema = schema
        self.queries = load_queries(schema)
        self.pool = Pool(
            self.dsn,
            connection_class=Connection,
            kwargs={
                "autocommit": True,
                "client_encoding": "utf8",
                "row_factory": dict_row,
                "prepare_threshold": None if through_pgbouncer else 1,
            },
            min_size=1,
            max_size=connections,
            timeout=self._pool_seconds,
            reconnect_timeout=_RECONNECT_SECONDS,
            reconnect_failed=lambda pool: pool.check(),
            configure=self._configure,
            open=False,
        )
        self.idle_limit = idle_limit
        self._idle_limit_ms = round(idle_limit.total_seconds() * 1000)
        begin: Call = (self.queries["begin"], {})
        limit: Call = (self.queries["limit_idle"], {"milliseconds": self._idle_limit_ms})
        self._opening = (begin, limit) if through_pgbouncer else (begin,)
        self._through_pgbouncer = through_pgbouncer
        listen = listen_dsn if through_pgbouncer else dsn
        self._wakeups = PostgresWakeups(f"kingdom_{schema}", self._notify, listen and with_timeouts(listen))
        self._paces: dict[str, ClaimPace] = defaultdict(ClaimPace)
        self._leases = OpenLeases()
        self._highest_token = 0
        self._reap_from, self._next_full_reap = 0, 0.0
        self.log_horizon, self.log_horizon_lock = LogHorizon(), asyncio.Lock()
        self._renewals = LeaseRenewals(self.dsn, self.queries, SESSION_SETTINGS, through_pgbouncer=through_pgbouncer)

    async def __aenter__(self) -> Self:
        with translate_errors():
            # The pool would retry silently until its timeout. A plain connection reports an error at once.
            await (await AsyncConnection.connect(self.dsn)).close()
            try:
                await self.pool.open(wait=True, timeout=self._pool_seconds)
            except BaseException:
                # __aexit__ is not called after an error here.
                await self.pool.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close settled leases and every connection."""
        try:
            await self._wakeups.close()
            if self._leases.closable and not self.pool.closed:
                # If this fails, the leases expire, and the reaper finds no events in them.
                with suppress(KingdomError), translate_errors():
                    await self._execute("close_leases", closing_parameters(self._leases.take_closable()))
        finally:
            await self.pool.close()
            await asyncio.to_thread(self._renewals.close)

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction on a pooled connection; see `Bus.transaction`."""
        with translate_errors():
            connection = await self.pool.getconn()
        transaction = self._new_transaction(connection)
        try:
            await transaction.hold(hold, optimistic=optimistic)
            yield transaction
            await transaction.commit()
        except LeaseLost as lost:
            items: list[Delivery | Settlement] = [*hold, *transaction.changes.settlements.values()]
            self._leases.lose(item for item in items if item.position in lost.positions)
            raise
        finally:
            await self.pool.take_back(connection)
        self._leases.settle(transaction.changes.settlements.values())
        copies = transaction.changes.copies.values()
        self._wakeups.wake_workers({hint_of(copy) for copy in copies}, events=len(copies))
        self._wakeups.wake_own_workers(transaction.streams_with_due)
        transaction.run_after_commit()

    def _new_transaction(self, connection: Connection) -> PostgresTransaction:
        may_skip = not self._through_pgbouncer
        return PostgresTransaction(
            connection, self.queries, self.topology, self.kinds, self._opening, may_skip_opening=may_skip
        )

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> tuple[EventCopy, ...]:
        """Publish envelopes; see `Bus.publish`. If one statement is enough, it runs without a transaction."""
        copies = copies_for_streams(self.topology, envelopes, at)
        if not self._through_pgbouncer and (only := single_publish_statement(copies)):
            name, parameters = only
            if await self._publish_alone(name, parameters, copies):
                return ()
        async with self.transaction() as transaction:
            transaction.enqueue(copies)
        return transaction.duplicates

    async def _publish_alone(self, name: str, parameters: Mapping[str, Any], copies: Sequence[EventCopy]) -> bool:
        """Publish copies by one statement in one round trip.

        Return False if nothing is published, because a stream already has one of the copies.
        """
        streams = {copy.stream.name for copy in copies}
        calls: list[Call] = [(self.queries[name], parameters)]
        if hints := self._wakeups.take_hints(streams, events=len(copies)):
            calls.append(self._notify_call(hints))
        with translate_errors():
            try:
                await self._execute_alone(*calls)
            except (DivisionByZero, UniqueViolation):
                return False
        self._wakeups.wake_workers(streams, events=len(copies), sent=hints)
        return True

    @asynccontextmanager
    async def join(self, connection: AsyncConnection[Any]) -> AsyncIterator[PostgresTransaction]:
        """Yield a Transaction inside the caller's own transaction. Its changes are written when the block ends.

        The caller commits later, so no wake-up is sent. Call `nudge` after the commit, or let polling find the events.
        """
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            raise Misconfigured("join needs an open transaction, but this connection is in autocommit mode")
        joined = JoinedConnection(connection)
        transaction = PostgresTransaction(joined, self.queries, self.topology, self.kinds, (), may_skip_opening=False)
        yield transaction
        await transaction.apply()
        for settled in transaction.changes.settlements.values():
            # The caller may still roll back, so only the reaper may end this lease.
            self._leases.pop(settled.token, None)

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim due events; see `Bus.claim`."""
        declared, pace = self.topology.stream(stream), self._paces[stream]
        bound, heads = pace.lower_bound(time.monotonic()), pace.heads(limit)
        closable = self._leases.take_closable()
        parameters = {
            "stream": stream,
            "limit": limit,
            "heads": heads,
            "worker": worker,
            "lease": declared.lease,
            "watermark": bound,
            **closing_parameters(closable),
        }
        # Concurrent claims may end in any order, but each token must be higher than those known when its claim began.
        known, started = self._highest_token, time.monotonic()
        try:
            with translate_errors():
                name = "claim_ordered" if declared.ordered else "claim"
                rows = (await self._execute(name, parameters, raise_tokens=True)).tuples()
        except BaseException:
            self._leases.closable |= closable
            raise
        deliveries, due = read_deliveries(stream, rows)
        now = time.monotonic()
        keys = len({d.ordering_key or d.position for d in deliveries}) if declared.ordered else len(deliveries)
        has_suspect = bool(deliveries) and deliveries[0].suspect
        full = has_suspect or len(rows) >= limit or (declared.ordered and keys >= heads)
        pace.record_claim(due, full=full, bound=bound, took=now - started, now=now)
        if full:
            self._wakeups.wake_own_workers({stream})
        if declared.ordered and not has_suspect:
            pace.record_keys(keys=keys, events=len(deliveries), limit=limit)
        if deliveries:
            token = deliveries[0].token
            self._leases.hold(token, {d.position for d in deliveries})
            self._highest_token = max(known, token, self._highest_token)
            if token <= known:
                # After a failover, a pooler has connected this process to a server whose tokens are lower. Targets of
                # effects would refuse such a token, so release the events and claim them again with a higher token.
                with translate_errors():
                    async with self.responsive_connection() as connection:
                        await self._raise_tokens(connection)
                async with self.transaction() as transaction:
                    for delivery in deliveries:
                        await transaction.settle(delivery, Release())
                return []
        return deliveries

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases on a separate connection; see `Bus.renew`."""
        return self._renewals.renew(leases)

    async def reap(self) -> int:
        """Requeue the events of expired leases; see `Bus.reap`."""
        now = time.monotonic()
        if now >= self._next_full_reap:
            self._reap_from, self._next_full_reap = 0, now + _FULL_REAP_SECONDS
        total = 0
        with translate_errors():
            if not self._reap_from:
                total += await self._repair()
            while True:
                (row,) = (await self._execute("reap", {"low": self._reap_from})).dicts()
                total += int(row["events"])
                self._wakeups.wake_workers(row["streams"])
                if not row["leases"]:
                    break
            ((self._reap_from,),) = (await self._execute("lowest_lease", {"low": self._reap_from})).tuples()
        self._leases.forget_below(self._reap_from)
        return total

    async def _repair(self) -> int:
        """Requeue events in flight without a lease, and restart waits after the clock was set back."""
        (orphans,) = (await self._execute("reap_orphans", {})).dicts()
        (repaired,) = (await self._execute("repair_clock", {})).dicts()
        if repaired["events"]:
            _log.warning("the clock of the server was set back; waits start again", events=repaired["events"])
        self._wakeups.wake_workers({*(orphans["streams"] or ()), *(repaired["streams"] or ())})
        return int(orphans["events"])

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint; see `Bus.wait`."""
        await self._wakeups.wait(streams, at_most)

    def nudge(self, streams: Collection[str]) -> None:
        """Wake the workers of these streams, and their courier. Call it after committing a joined transaction."""
        is_carried = not set(self.topology.carried()).isdisjoint(streams)
        self._wakeups.wake_workers({*streams, COURIER_HINT} if is_carried else streams)

    async def _execute(self, name: str, parameters: Mapping[str, Any], *, raise_tokens: bool = False) -> Rows:
        async with self.responsive_connection() as connection:
            if raise_tokens and not connection.has_raised_tokens:
                await self._raise_tokens(connection)
            call: Call = (self.queries[name], parameters)
            if not self._through_pgbouncer:
                return (await connection.run(call))[0]
            # Behind PgBouncer the session may have another default isolation level.
            return (await connection.run_and_commit(*self._opening, call))[-1]

    async def _execute_alone(self, *calls: Call) -> None:
        """Run statements that each commit by themselves."""
        connection = await self.pool.getconn()
        try:
            await connection.run(*calls, commit_each=True)
        finally:
            await self.pool.putconn(connection)

    @asynccontextmanager
    async def responsive_connection(self) -> AsyncIterator[Connection]:
        """Yield a connection for a limited time, because an answer may be lost without an error."""
        connection = await self.pool.getconn()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                yield connection
        except TimeoutError:
            raise Unavailable(f"the database has not answered for {_ANSWER_SECONDS:g} s") from None
        finally:
            await self.pool.take_back(connection)

    async def _configure(self, connection: Connection) -> None:
        # The driver sends the isolation level with every BEGIN.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        set_json_loads(msgspec.json.decode, connection)
        if self._through_pgbouncer:
            return
        for setting in SESSION_SETTINGS:
            await connection.execute(setting)
        # A process that hangs must not keep rows locked.
        await connection.execute(f"SET idle_in_transaction_session_timeout = {self._idle_limit_ms:d}")

    async def _notify(self, streams: list[str]) -> None:
        call = self._notify_call(streams)
        if self._through_pgbouncer:
            await self._execute("notify", call[1])
        else:
            await self._execute_alone(call)

    def _notify_call(self, streams: Collection[str]) -> Call:
        return self.queries["notify"], {"channel": self._wakeups.channel, "streams": to_json(sorted(streams))}

    async def _raise_tokens(self, connection: Connection) -> None:
        """Make new tokens higher than the clock and all tokens that this process has seen. Log lost transactions."""
        seen = {"seen": self._highest_token}
        if await (await connection.execute(self.queries["lost_token"], seen)).fetchall():
            _log.error("the server has lost committed transactions; raising the tokens", **seen)
            entry = LogEntry(
                type="store.transactions_lost",
                actor="bus",
                data={"seen": str(self._highest_token)},
                aggregate_id=LOST_TRANSACTIONS,
            )
            await connection.execute(self.queries["append"], {"entries": entry_rows([entry])})
        async with connection.transaction():
            await connection.execute(self.queries["lock_tokens"], {"lock": _TOKEN_LOCK})
            await connection.execute(self.queries["raise_tokens"], seen)
        connection.has_raised_tokens = True
