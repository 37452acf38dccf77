"""The scenarios: each fills a database, runs a bus on it and records the cost of its statements."""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, LiteralString

from bench.explain import ExplainedBus
from bench.fill import Connection, fill_archive, fill_events
from bench.growth.figures import CLAIM_LIMIT, CROWDED_CLAIM_LIMIT
from bench.growth.lab import BATCH, LEASE, LINE, Lab, pinned, settle
from kingdom.backends.postgres.claim_pace import EVERYTHING
from kingdom.bus import Envelope

CLAIMS = 5
LEASE_SIZE = 100
RENEWED_AT_ONCE, NEIGHBOR_LEASES = 32, 10
# A bus also searches for events that were committed late: at most once per second, and for a twentieth of its time.
SPACED = "at most 1 a second"
PENDING, FOLLOWERS, ROWS, PROCESSED = "pending", "followers", "rows", "events processed under the pin"
# Every tenth row belongs to the retrying key. The events of other keys are spread, as in real use.
_RETRYING_KEY: LiteralString = "CASE WHEN g % 10 = 0 THEN 'retrying' ELSE 'key-' || g % ({rows} / 100) END"
_RETRYING_DUE: LiteralString = """
CASE WHEN g = 10 THEN now() + interval '1 hour' WHEN g % 10 <> 0 AND g <= {rows} / 100 THEN at ELSE 'infinity' END
"""


async def measure_backlog(lab: Lab) -> None:
    """Measure claims, settlements, renewals and the reaper over growing backlogs, with as many finished events."""
    for size in lab.scale.pending:
        with lab.database() as (dsn, connection):
            lab.say(f"backlog: {size:,} pending, {size:,} archived")
            fill_events(connection, size)
            fill_archive(connection, size)
            async with lab.bus(dsn) as bus:
                claim = lab.figures.row("claim", PENDING, limit=CLAIM_LIMIT)
                claimed = [await bus.claim("stream-0", BATCH, "worker") for _ in range(CLAIMS)]
                claim.note(size, _buffers(bus, "claim"))
                await settle(bus, claimed[-1])
                lab.figures.row("settle", PENDING).note(size, _buffers(bus, "done"))
            lab.say(f"backlog: {lab.scale.crowd} workers with {LEASE_SIZE} each in flight")
            await _measure_crowd(lab, dsn, connection, size)


async def _measure_crowd(lab: Lab, dsn: str, connection: Connection, size: int) -> None:
    """Measure the next claim, renewals and the reaper while many workers hold leases."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(lab.bus(dsn)) for _ in range(lab.scale.crowd)]
        held = [await worker.claim("stream-0", LEASE_SIZE, "worker") for worker in workers]
        tokens = [deliveries[0].token for deliveries in held]
        crowd = f"{lab.scale.crowd} x {LEASE_SIZE} in flight"
        by_watermark = lab.figures.row(f"claim, {crowd}", PENDING, limit=CROWDED_CLAIM_LIMIT)
        over_everything = lab.figures.row(f"claim over everything, {crowd} ({SPACED})", PENDING, flat=False)
        for _ in range(CLAIMS):
            await workers[-1].claim("stream-0", BATCH, "worker")
        for plan in workers[-1].take("claim"):
            if plan.parameters["limit"] == BATCH:
                row = over_everything if plan.parameters["watermark"] == EVERYTHING else by_watermark
                row.note(size, [plan.buffers])
        async with lab.bus(dsn) as newcomer:
            await newcomer.claim("stream-0", BATCH, "worker")
            over_everything.note(size, _buffers(newcomer, "claim"))
        bus = workers[0]
        bus.renew(dict.fromkeys(tokens[:RENEWED_AT_ONCE], LEASE))
        lab.figures.row(f"renew {RENEWED_AT_ONCE} leases", PENDING).note(size, _buffers(bus, "renew"))
        await bus.reap()
        lab.figures.row("reap, nothing due", PENDING).note(size, _buffers(bus, "reap"))
        connection.execute(
            "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 s' WHERE token = %s", [tokens[0]]
        )
        assert await bus.reap() == LEASE_SIZE
        lab.figures.row(f"reap a lease of {LEASE_SIZE}", PENDING).note(size, _buffers(bus, "reap"))


async def measure_streams(lab: Lab) -> None:
    """Measure claims from four streams whose events are mixed in one table."""
    row = lab.figures.row("claim, four streams", PENDING, limit=CLAIM_LIMIT)
    for size in lab.scale.pending:
        with lab.database() as (dsn, connection):
            lab.say(f"four streams: {size:,} pending")
            fill_events(connection, size, stream="'stream-' || g % 4")
            fill_archive(connection, size)
            async with lab.bus(dsn) as bus:
                for number in range(4 * CLAIMS):
                    assert len(await bus.claim(f"stream-{number % 4}", BATCH, "worker")) == BATCH
                    row.note(size, _buffers(bus, "claim"))


async def measure_retrying_key(lab: Lab) -> None:
    """Measure claims from an ordered stream in which a key that is retried has every tenth event."""
    row = lab.figures.row("claim, ordered, a retrying key owns a tenth", ROWS, limit=CLAIM_LIMIT)
    for size in lab.scale.retrying:
        with lab.database() as (dsn, connection):
            lab.say(f"retrying key: {size // 10:,} of {size:,} events")
            fill_events(connection, size, stream="'line'", key=_RETRYING_KEY, due=_RETRYING_DUE)
            async with lab.bus(dsn) as bus:
                for _ in range(CLAIMS):
                    deliveries = await bus.claim(LINE, BATCH, "worker")
                    assert deliveries
                    row.note(size, _buffers(bus, "claim_ordered"))


async def measure_idle(lab: Lab) -> None:
    """Measure claims that find nothing: the first event of each key is due later, and the others wait for it."""
    row = lab.figures.row("claim, ordered, idle", FOLLOWERS, limit=CLAIM_LIMIT)
    for size in lab.scale.followers:
        with lab.database() as (dsn, connection):
            lab.say(f"idle ordered stream: {size:,} followers")
            due: LiteralString = "CASE WHEN g <= 1000 THEN now() + interval '1 hour' ELSE 'infinity' END"
            fill_events(connection, size, stream="'line'", key="'key-' || g % 1000", due=due)
            async with lab.bus(dsn) as bus:
                for _ in range(CLAIMS):
                    assert await bus.claim(LINE, BATCH, "worker") == []
                    row.note(size, _buffers(bus, "claim_ordered"))


async def measure_pinned(lab: Lab) -> None:
    """Measure the statements of a worker while xmin is pinned, so that dead rows are never removed."""
    figures, scale = lab.figures, lab.scale
    claim = figures.row("claim, xmin pinned", PROCESSED, limit=CLAIM_LIMIT)
    look = figures.row(f"claim over everything, xmin pinned ({SPACED})", PROCESSED, flat=False)
    with lab.database() as (dsn, connection):
        lab.say(f"pinned xmin: {scale.pinned_events:,} events")
        fill_events(connection, scale.pinned_events + (scale.phases + 1) * NEIGHBOR_LEASES * BATCH)
        async with lab.bus(dsn) as bus, lab.bus(dsn) as neighbor:
            with pinned(dsn):
                for phase in range(1, scale.phases + 1):
                    size = scale.pinned_events // scale.phases * phase
                    for _ in range(scale.pinned_events // scale.phases // BATCH):
                        deliveries = await bus.claim("stream-0", BATCH, "worker")
                        assert len(deliveries) == BATCH
                        for plan in bus.take("claim"):
                            (look if plan.parameters["watermark"] == EVERYTHING else claim).note(size, [plan.buffers])
                        await settle(bus, deliveries)
                        figures.row("settle, xmin pinned", PROCESSED).note(size, _buffers(bus, "done"))
                    await _measure_upkeep(lab, neighbor, size)


async def _measure_upkeep(lab: Lab, neighbor: ExplainedBus, size: int) -> None:
    """Measure the reaper and the renewals of a second worker, whose leases the first worker does not end."""
    held = [await neighbor.claim("stream-0", BATCH, "neighbor") for _ in range(NEIGHBOR_LEASES)]
    await neighbor.reap()
    neighbor.take()
    await neighbor.reap()
    lab.figures.row("reap, nothing due, xmin pinned", PROCESSED).note(size, _buffers(neighbor, "reap"))
    neighbor.renew({deliveries[0].token: LEASE for deliveries in held})
    lab.figures.row(f"renew {NEIGHBOR_LEASES} leases, xmin pinned", PROCESSED).note(size, _buffers(neighbor, "renew"))
    await settle(neighbor, [delivery for deliveries in held for delivery in deliveries])
    neighbor.take()


async def measure_pinned_key(lab: Lab) -> None:
    """Measure publishing to one busy key and settling its events while xmin is pinned."""
    figures, scale = lab.figures, lab.scale
    with lab.database() as (dsn, connection):
        lab.say(f"pinned xmin, one hot key: {scale.pinned_events:,} events")
        hot: LiteralString = "CASE WHEN g = 1 THEN at ELSE 'infinity' END"
        fill_events(connection, 20 * BATCH, stream="'line'", key="'hot'", due=hot)
        async with lab.bus(dsn) as bus:
            with pinned(dsn):
                for phase in range(1, scale.phases + 1):
                    size = scale.pinned_events // scale.phases * phase
                    for _ in range(scale.pinned_events // scale.phases // BATCH):
                        await _turn(lab, bus, size)
                    deliveries = await bus.claim(LINE, 1, "worker")
                    bus.take()
                    await settle(bus, deliveries)
                    cost = sum(plan.buffers for plan in bus.take("lock_keys", "done_ordered"))
                    figures.row("settle 1 ordered event, xmin pinned", PROCESSED).note(size, [cost])


async def _turn(lab: Lab, bus: ExplainedBus, size: int) -> None:
    """Publish, claim and settle one batch of the hot key."""
    payload = {"number": size, "text": "x" * 160}
    events = [Envelope(type="Measured", stream=LINE, partition_key="hot", payload=payload) for _ in range(BATCH)]
    await bus.publish(*events)
    lab.figures.row("publish to a hot key, xmin pinned", PROCESSED).note(size, _buffers(bus, "publish_ordered"))
    deliveries = await bus.claim(LINE, BATCH, "worker")
    assert len(deliveries) == BATCH
    row = lab.figures.row("claim, ordered, hot key, xmin pinned", PROCESSED, limit=CLAIM_LIMIT)
    row.note(size, [plan.buffers for plan in bus.take("claim_ordered") if plan.parameters["watermark"] != EVERYTHING])
    await settle(bus, deliveries)
    bus.take()


def _buffers(bus: ExplainedBus, name: str) -> list[int]:
    return [plan.buffers for plan in bus.take(name)]


SCENARIOS: dict[str, Callable[[Lab], Coroutine[Any, Any, None]]] = {
    "backlog": measure_backlog,
    "streams": measure_streams,
    "retrying": measure_retrying_key,
    "idle": measure_idle,
    "pinned": measure_pinned,
    "pinned-key": measure_pinned_key,
}
