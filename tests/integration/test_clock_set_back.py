"""The clock of the server is set back by an hour: only events with a chosen time wait an hour longer."""

from datetime import UTC, datetime

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Defer, Delivery, Envelope, Retry, Stream
from kingdom.bus.outcome import AnyOutcome, Release
from tests.integration.running import HOUR, open_bus, rows, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
BOTH = pytest.mark.parametrize(("declared", "kind"), [(JOBS, "Job"), (LINE, "Step")], ids=["jobs", "line"])
TOMORROW = datetime.now(UTC) + 24 * HOUR


async def set_clock_back(bus: PostgresBus) -> None:
    """Move all rows one hour into the future, as if the clock had been set back."""
    await rows(
        bus,
        "UPDATE kingdom.outbox_event SET created_at = created_at + interval '1 h', updated_at = updated_at"
        " + interval '1 h', next_retry_at = CASE WHEN next_retry_at = not_before THEN next_retry_at"
        " ELSE next_retry_at + interval '1 h' END",
    )
    await rows(
        bus,
        "UPDATE kingdom.outbox_lease SET expires_at = expires_at + interval '1 h', renewed_at = renewed_at"
        " + interval '1 h'",
    )


async def claim(bus: PostgresBus, declared: Stream) -> list[Delivery]:
    # The pace of a stream may skip events that are due earlier than the last claimed one.
    bus._paces.clear()
    return await bus.claim(declared.name, 10, "test")


async def settle(bus: PostgresBus, outcome: AnyOutcome, *deliveries: Delivery) -> None:
    async with bus.transaction() as transaction:
        for delivery in deliveries:
            await transaction.settle(delivery, outcome)


def event(kind: str) -> Envelope:
    return Envelope(type=kind, partition_key="key")


@BOTH
async def test_a_reap_makes_due_events_due_again(dsn: str, declared: Stream, kind: str) -> None:
    async with open_bus(dsn, declared) as bus:
        await bus.publish(event(kind), event(kind))
        await set_clock_back(bus)
        assert await claim(bus, declared) == []
        await bus.reap()
        assert len(await claim(bus, declared)) == 2


async def test_a_reap_makes_the_events_of_every_stream_due_again(dsn: str) -> None:
    declared = [stream(name, name.title()) for name in ("first", "second", "third")]
    async with open_bus(dsn, *declared) as bus:
        await bus.publish(*(event(each.name.title()) for each in declared))
        await set_clock_back(bus)
        await bus.reap()
        assert [len(await claim(bus, each)) for each in declared] == [1, 1, 1]


@BOTH
async def test_a_retry_wait_starts_over_and_a_requested_due_time_stays(dsn: str, declared: Stream, kind: str) -> None:
    async with open_bus(dsn, declared) as bus:
        for outcome in (Retry(2 * HOUR), Defer.by(2 * HOUR, "later"), Defer(TOMORROW, "tomorrow")):
            await bus.publish(Envelope(type=kind, partition_key=type(outcome).__name__ + str(outcome)))
            await settle(bus, outcome, *await claim(bus, declared))
        await bus.publish(Envelope(type=kind, partition_key="at"), at=TOMORROW)
        await set_clock_back(bus)
        await bus.reap()
        waits = await rows(
            bus,
            "SELECT CASE WHEN next_retry_at = not_before THEN 'asked for'"
            " ELSE round(extract(epoch FROM next_retry_at - now()) / 3600)::text END AS wait"
            " FROM kingdom.outbox_event ORDER BY id",
        )
        assert [row["wait"] for row in waits] == ["2", "2", "asked for", "asked for"]
        moments = await rows(bus, "SELECT next_retry_at AS at FROM kingdom.outbox_event WHERE not_before IS NOT NULL")
        assert [row["at"] for row in moments] == [TOMORROW, TOMORROW]


async def test_released_events_of_a_key_are_due(dsn: str) -> None:
    async with open_bus(dsn, LINE) as bus:
        await bus.publish(event("Step"), event("Step"))
        first, second = await claim(bus, LINE)
        await set_clock_back(bus)
        await settle(bus, Release(), first, second)
        assert [delivery.position for delivery in await claim(bus, LINE)] == [first.position, second.position]


async def test_a_lease_of_a_dead_worker_ends_after_its_own_length(dsn: str) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(event("Job"))
        (delivery,) = await claim(bus, JOBS)
        bus.renew({delivery.token: HOUR / 60})
        await set_clock_back(bus)
        assert await bus.reap() == 0
        (lease,) = await rows(bus, "SELECT expires_at - now() <= interval '1 min' AS brief FROM kingdom.outbox_lease")
        assert lease["brief"]


async def test_one_reap_repairs_at_most_1000_events_of_a_stream(dsn: str) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(*(event("Job") for _ in range(1100)), at=TOMORROW)
        await rows(bus, "UPDATE kingdom.outbox_event SET not_before = NULL, updated_at = now() + interval '1 h'")
        await bus.reap()
        (left,) = await rows(bus, "SELECT count(*) AS n FROM kingdom.outbox_event WHERE updated_at > now()")
        assert left["n"] == 100
