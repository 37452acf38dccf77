"""A store with every state of an event, a record and a key."""

from datetime import UTC, datetime, timedelta

from kingdom.bus import Dead, Done, Envelope, LogEntry, Record, Retry
from kingdom.clock import utc_now
from tests.contract.scene import HOUR, NO_WAIT, Scene, ping, skip, step

# A store of files has a file per dedup key, named after the key or, if the key is too long, after its hash. A file of
# `seen` that has the name of its key is empty, and its modification time says when the key expires.
_LONG_KEY = f"https://example.org/{'x' * 300}"
TAKEN_KEYS = [("webhook", "delivery-1"), ("webhook", _LONG_KEY), ("seen", "github:pr-1"), ("seen", _LONG_KEY)]
LONG_AGO = datetime(2020, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)


async def fill_every_state(scene: Scene, later: timedelta = HOUR) -> None:
    """Bring a store into every state of an event, a record and a key. Waiting events are due `later`."""
    await _ordered_events(scene, later)
    await _unordered_events(scene, later)
    await _everything_else(scene)


async def _unordered_events(scene: Scene, later: timedelta) -> None:
    bus = scene.bus
    rich = Envelope(
        type="Both",
        payload={"text": 'ünï"cödé\\\n\t🏰', "deep": [{"n": 1.5}, None, True, 12345678901234567890], "empty": {}},
        schema_version=3,
        occurred_at=LONG_AGO,
        owner_id="owner",
        partition_key="",
        aggregate_type="order",
        aggregate_id="7",
        attributes={"market": "krx", "strategyKey": "a=b"},
    )
    await bus.publish(ping(1), ping(2), rich)
    await bus.publish(ping(3), at=utc_now() + later)
    for host, outcome in (
        ("retrying", Retry(later, "busy", "the line is busy\tstill")),
        ("dead", Dead("broken", "broken")),
        ("discarded", Dead("useless", "useless")),
        ("done", Done()),
    ):
        await bus.publish(Envelope(type="Ping", stream=f"host.{host}", payload={"host": host}))
        delivery = await scene.claim_one(f"host.{host}")
        await scene.settle(outcome, delivery)
        if host == "discarded":
            await scene.discard(delivery)
    await _twice_dead(scene)
    await bus.publish(Envelope(type="Ping", stream="host.lost"))
    lost = await scene.claim_one("host.lost")
    assert await scene.cancel(lost) == "requested"
    assert await scene.lose(lost) == 1


async def _twice_dead(scene: Scene) -> None:
    event = Envelope(type="Ping", stream="host.history", payload={"good": False})
    await scene.bus.publish(event)
    first = await scene.kill_next("host.history")
    await scene.operations.patch(event.event_id, "host.history", {"good": True}, actor="tester")
    await scene.redrive(first)
    await scene.kill_next("host.history")


async def _ordered_events(scene: Scene, later: timedelta) -> None:
    bus = scene.bus
    await bus.publish(*(step("blocked", number) for number in range(3)))
    await scene.kill_next("line")
    await bus.publish(*(step("retrying", number) for number in range(3)))
    await scene.settle(Retry(later, "busy", "busy"), await scene.claim_one("line"))
    await bus.publish(*(step("waiting", number) for number in range(4)))
    await scene.settle(Done(), await scene.claim_one("line"))
    await bus.publish(step("later"), at=utc_now() + later)
    await redrive_while_next_is_in_flight(scene)


async def redrive_while_next_is_in_flight(scene: Scene) -> None:
    """Redrive a dead event while the next event of its key is in flight, and then lose the lease of that next event."""
    await scene.bus.publish(*(skip("redriven", number) for number in range(3)))
    dead = await scene.kill_next("skipping")
    flying = await scene.claim_one("skipping")
    await scene.redrive(dead)
    assert await scene.lose(flying) == 1


async def _everything_else(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        for number in range(3):
            await transaction.put(Record(kind="job", id=f"job-{number}", state="open", doc={"n": number, "ü": [None]}))
            await transaction.append(LogEntry(type="job.opened", actor="tester", data={"n": number}, at=LONG_AGO))
        await transaction.put(Record(kind="tally", id="t", state="counting", indexed={"owner": "me"}, due_at=LONG_AGO))
        await transaction.once("webhook", "delivery-2", NO_WAIT)
        for scope, key in TAKEN_KEYS:
            await transaction.once(scope, key, HOUR)
    async with scene.bus.transaction() as transaction:
        job = await transaction.get("job", "job-1")
        assert job
        await transaction.put(job.replace(state="closed", doc={"closed": True}))
        await transaction.append(LogEntry(type="job.closed", actor="tester", aggregate_type="job", aggregate_id="1"))
    await scene.operations.pause("other", reason="the other side is down", actor="tester")
