"""A clock that was set back delays nothing, except events with a chosen time."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.bus import Dead, Defer, Delivery, Done, Envelope, Retry
from kingdom.bus.operations import DeadFilter
from kingdom.bus.outcome import AnyOutcome
from kingdom.clock import utc_now
from tests.integration.test_files_extremes import numbers, opened, ping, step

_WAIT = timedelta(seconds=90)
_LONG = timedelta(hours=2)


class SetClock:
    """The clock of this process, set by a test."""

    def __init__(self) -> None:
        self._true = time.time
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._true() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    clock = SetClock()
    monkeypatch.setattr(time, "time", clock)
    return clock


async def settle(bus: FilesBus, outcome: AnyOutcome) -> Delivery:
    (delivery,) = await bus.claim("free", 1, "worker")
    async with bus.transaction([delivery]) as transaction:
        await transaction.settle(delivery, outcome)
    return delivery


async def due_in(bus: FilesBus, event: Envelope) -> timedelta:
    (situation,) = await FilesOperations(bus).situations(event.event_id)
    assert situation.due_at
    return situation.due_at - datetime.fromtimestamp(time.time(), situation.due_at.tzinfo)


@pytest.mark.parametrize("who", ["the same process", "another one", "a new one"])
async def test_events_published_before_the_clock_was_set_back_are_claimed(
    realm: Path, clock: SetClock, who: str
) -> None:
    async with opened(realm) as bus, opened(realm) as another:
        await another.publish(ping(0), step(0))
        assert (await numbers(another, "free"), await numbers(another, "line")) == ([0], [0])
        clock.ahead = 3600
        # Another process may never have seen the wrong clock.
        await bus.publish(ping(1), step(1, "k"), step(2, "other"), step(3, "other"))
        clock.ahead = 0
        async with opened(realm) as new:
            worker = {"the same process": bus, "another one": another, "a new one": new}[who]
            assert await numbers(worker, "free") == [1]
            # An event of the first key is still in flight.
            assert await numbers(worker, "line") == [2, 3]


@pytest.mark.parametrize("outcome", [Retry(_WAIT), Defer.by(_WAIT, "busy")], ids=["retry", "deferred by"])
async def test_a_wait_keeps_its_length_when_the_clock_is_set_forward_and_back(
    realm: Path, clock: SetClock, outcome: AnyOutcome
) -> None:
    event = ping(1)
    async with opened(realm) as bus:
        await bus.publish(event)
        (delivery,) = await bus.claim("free", 1, "worker")
        # The clock is set forward while the handler runs.
        clock.ahead = 3600
        async with bus.transaction([delivery]) as transaction:
            await transaction.settle(delivery, outcome)
        clock.ahead = 0
        assert timedelta(0) < await due_in(bus, event) <= _WAIT
    async with opened(realm) as bus:
        assert timedelta(0) < await due_in(bus, event) <= _WAIT


async def test_reaped_and_redriven_events_are_due(realm: Path, clock: SetClock) -> None:
    async with opened(realm) as bus:
        operations = FilesOperations(bus)
        await bus.publish(ping(1))
        await settle(bus, Dead("broken"))
        await bus.publish(ping(2))
        (lost,) = await bus.claim("free", 1, "worker")
        bus.renew({lost.token: -_WAIT})
        clock.ahead = 3600
        assert await bus.reap() == 1
        (letter,) = await operations.dead_letters(DeadFilter(), 9)
        assert await operations.redrive([letter.position], actor="tester")
        clock.ahead = 0
    async with opened(realm) as bus:
        # An event whose worker died is claimed alone.
        assert sorted([*await numbers(bus, "free"), *await numbers(bus, "free")]) == [1, 2]


async def test_a_due_time_requested_by_a_caller_stays(realm: Path, clock: SetClock) -> None:
    later = utc_now() + _LONG
    published, deferred = ping(1), ping(2)
    clock.ahead = 3600
    async with opened(realm) as bus:
        await bus.publish(published, at=later)
        await bus.publish(deferred)
        await settle(bus, Defer(later, "not yet"))
        clock.ahead = 0
        for event in (published, deferred):
            assert abs(await due_in(bus, event) - _LONG) < timedelta(minutes=1)
    async with opened(realm) as bus:
        for event in (published, deferred):
            assert abs(await due_in(bus, event) - _LONG) < timedelta(minutes=1)


async def test_a_long_wait_stays_if_the_clock_is_only_adjusted_slightly(realm: Path, clock: SetClock) -> None:
    event = ping(1)
    async with opened(realm) as bus:
        await bus.publish(event)
        await settle(bus, Retry(_LONG))
    clock.ahead = 60
    async with opened(realm) as bus:
        assert abs(await due_in(bus, event) - _LONG) < timedelta(minutes=2)
        clock.ahead = 30
        assert abs(await due_in(bus, event) - _LONG) < timedelta(minutes=2)


async def test_an_ordered_stream_continues_in_its_order(realm: Path, clock: SetClock) -> None:
    async def finish_one(bus: FilesBus) -> list[int]:
        claimed = await bus.claim("line", 1, "worker")
        async with bus.transaction(claimed) as transaction:
            for delivery in claimed:
                await transaction.settle(delivery, Done())
        return [delivery.envelope.payload["number"] for delivery in claimed]

    async with opened(realm) as bus:
        clock.ahead = 3600
        await bus.publish(*map(step, range(4)))
        assert await finish_one(bus) == [0]
        clock.ahead = 0
        assert await finish_one(bus) == [1]
        clock.ahead = 3600
        assert await finish_one(bus) == [2]
        clock.ahead = 0
    async with opened(realm) as bus:
        assert await finish_one(bus) == [3]
