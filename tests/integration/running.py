"""Start buses and workers in tests, and wait for their effects with a time limit."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, LiteralString

from psycopg.rows import DictRow

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import EFFECTS, Bus, Dispatcher, Envelope, RecordKind, RetryPolicy, Stream, Topology, Worker
from tests.patience import PATIENCE_SECONDS

MARKS = RecordKind(name="mark", directories={"open": "state/marks/open", "made": "state/marks/made"})
QUICK_RETRY = RetryPolicy(base=timedelta(milliseconds=10), jitter=0)
HOUR = timedelta(hours=1)
LATE_RETRY = RetryPolicy(base=HOUR, cap=HOUR)
# Replaces HeldLease.due_at: leases are renewed early, so that a test with long leases does not wait.
RENEWED_EARLY = property(lambda lease: lease.renewed_at + 0.05)


def stream(name: str, *types: str, **options: Any) -> Stream:
    """Return a stream whose leases end only if the test ends them."""
    return Stream(name=name, subscribes=frozenset(types), **{"retry": QUICK_RETRY, "lease": HOUR, **options})


def numbered(event_type: str, count: int, **headers: Any) -> list[Envelope]:
    return [Envelope(type=event_type, payload={"n": number}, **headers) for number in range(count)]


class Limits:
    """Sets the time limits of handlers. A test can let the newest limit expire."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._newest: asyncio.Timeout | None = None

    def __call__(self, seconds: float) -> asyncio.Timeout:
        self.seconds = seconds
        self._newest = asyncio.timeout(seconds)
        return self._newest

    def let_pass(self) -> None:
        assert self._newest is not None
        self._newest.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def open_bus(dsn: str, *streams: Stream, **options: Any) -> AsyncIterator[PostgresBus]:
    async with PostgresBus(dsn, Topology(streams), [EFFECTS, MARKS], **options) as bus:
        yield bus


@asynccontextmanager
async def at_work(bus: Bus, dispatcher: Dispatcher, *streams: str, **options: Any) -> AsyncIterator[Worker]:
    brief = {"poll": timedelta(milliseconds=20), "grace": timedelta(seconds=5)}
    worker = Worker(bus, dispatcher, streams or bus.topology.names(), **{**brief, **options})
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


async def eventually(ready: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.02)


async def rows(bus: PostgresBus, query: LiteralString, *parameters: Any) -> list[DictRow]:
    async with bus.pool.connection() as connection:
        cursor = await connection.execute(query, parameters)
        return await cursor.fetchall() if cursor.description else []


async def statuses(bus: PostgresBus) -> Counter[str]:
    found = await rows(bus, "SELECT status, count(*) AS n FROM kingdom.outbox_all GROUP BY status")
    return Counter({row["status"]: row["n"] for row in found})


async def until_all(bus: PostgresBus, status: str, count: int) -> None:
    """Wait until exactly this many events are known and all of them have this status."""

    async def reached() -> bool:
        return await statuses(bus) == Counter({status: count})

    await eventually(reached)


async def event(bus: PostgresBus, envelope: Envelope) -> DictRow:
    found = await rows(bus, "SELECT * FROM kingdom.outbox_all WHERE event_id = %s", envelope.event_id)
    assert len(found) == 1
    return found[0]
