"""Count the reads of the courier in PostgreSQL per tick: with more retained events, or under a pinned transaction."""

from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL

from bench.explain import Plan
from bench.kafka.turns import STREAM, ping
from kingdom.backends.kafka.courier import LEASE
from kingdom.backends.kafka.courier_queue import CourierQueue
from kingdom.backends.postgres import PostgresBus

TICK_EVENTS = 200
_FILL_EVENTS = 100
_HOLDER = "bench"
_HISTORY_EVENTS = 20_000
# A busy courier sends about this many ticks a second, and reports once a second.
_TICKS_PER_REPORT = 20
# Each transaction has some events, as with real publishers, because the statistics count distinct transaction ids.
_FILL: LiteralString = """
DO $$ BEGIN
  FOR part IN 1..{} LOOP
    INSERT INTO kingdom.courier_event (stream, partition_key, event_id, event_type, schema_version, trace_id, value)
    SELECT {}, 'key-' || n, gen_random_uuid(), 'Ping', 1, '', '{{}}' FROM generate_series(1, {}) AS n;
    COMMIT;
  END LOOP;
END $$
"""


class MeasuredRelay:
    """Takes ticks like a courier, and counts the buffers of every statement. `scan` reads the table for each tick."""

    def __init__(
        self, bus: PostgresBus, connection: psycopg.AsyncConnection[dict[str, Any]], *, scan: bool = False
    ) -> None:
        self._bus = bus
        self._queue = CourierQueue(bus)
        self._connection = connection
        self._queries = dict(bus.queries)
        if scan:
            self._queries["events_of_tick"] = self._queries["events_of_tick"].replace("xid >=", "xid::text::xid8 >=")
        self._sent = 0

    async def fill(self, events: int) -> None:
        """Add events that are sent already."""
        await self._connection.execute(SQL(_FILL).format(max(events // _FILL_EVENTS, 1), STREAM, _FILL_EVENTS))
        await self._queue.hold(_HOLDER, LEASE)
        (*_, last) = await self._queue.take_ticks(self._sent)
        await self._queue.note_sent(last.number)
        self._sent = last.number
        await self._connection.execute("VACUUM ANALYZE kingdom.courier_event")

    async def relay(self, *, reports: bool = True) -> int:
        """Publish some events, relay them as one tick, and return the buffers that all statements read.

        A courier renews its lease and reports what is sent once in a while, and not for each tick.
        """
        await self._bus.publish(*map(ping, range(TICK_EVENTS)))
        async with self._connection.transaction():
            buffers = await self._explain("lock_courier")
            buffers += await self._explain("add_tick", begun=self._sent)
        buffers += await self._explain("unsent_ticks", sent=self._sent)
        (tick,) = await self._queue.take_ticks(self._sent)
        buffers += await self._explain("events_of_tick", snapshot=tick.snapshot, earlier=tick.earlier, after=0)
        if reports:
            buffers += await self._explain("hold_courier", holder=_HOLDER, lease=LEASE)
            buffers += await self._explain("note_sent", number=tick.number)
        self._sent = tick.number
        return buffers

    async def _explain(self, name: str, **parameters: Any) -> int:
        query = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {self._queries[name]}"
        cursor = await self._connection.execute(query.encode(), parameters)
        (row,) = await cursor.fetchall()
        (explained,) = row["QUERY PLAN"]
        return Plan(name, explained["Plan"], compiled=False, parameters=parameters).buffers


async def buffers_by_retained(dsn: str, bus: PostgresBus, sizes: tuple[int, ...], *, scan: bool) -> dict[int, int]:
    """Return the buffers of a tick for each number of retained events. The sizes grow."""
    found: dict[int, int] = {}
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        relay = MeasuredRelay(bus, connection, scan=scan)
        before = 0
        for size in sizes:
            await relay.fill(size - before)
            before = size
            # The first tick after a vacuum reads pages that it has changed.
            await relay.relay()
            found[size] = await relay.relay()
    return found


async def buffers_by_pinned_ticks(dsn: str, bus: PostgresBus, ticks: int, *, reports_each: bool) -> dict[int, int]:
    """Return the buffers of an early tick and of the last one, while an older transaction stays open."""
    every = 1 if reports_each else _TICKS_PER_REPORT
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection,
        await psycopg.AsyncConnection.connect(dsn) as pinned,
    ):
        relay = MeasuredRelay(bus, connection)
        # With fewer events, statistics say that reading the whole table is cheaper than its index.
        await relay.fill(_HISTORY_EVENTS)
        await pinned.execute("SELECT pg_current_xact_id()")
        buffers = [await relay.relay(reports=number % every == 0) for number in range(ticks + 1)]
    return {number: buffers[number] for number in (ticks // 5, ticks)}
