"""How many events a real worker claims and runs at once, and how it stops."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import (
    EFFECTS,
    Acked,
    Attempt,
    CallResult,
    Delivery,
    Dispatcher,
    Envelope,
    Event,
    LogEntry,
    Target,
    Topology,
    Transaction,
    Worker,
)
from kingdom.bus.metrics import WorkerMetrics
from tests.integration.local_effect import LocalEffect
from tests.integration.running import (
    at_work,
    eventually,
    numbered,
    open_bus,
    rows,
    stream,
    until_all,
)
from tests.patience import PATIENCE_SECONDS

SOON = timedelta(milliseconds=200)
LONG = timedelta(minutes=5)


class Valve:
    """Lets calls pass while it is open, and holds them while it is shut."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.passed = 0
        self._open = asyncio.Event()
        self._open.set()

    async def call(self, _attempt: Attempt) -> CallResult:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self._open.wait()
            self.passed += 1
            return Acked()
        finally:
            self.inside -= 1

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def holds(self, count: int) -> None:
        async def full() -> bool:
            return self.inside == count

        await eventually(full)


@asynccontextmanager
async def working(bus: PostgresBus, valve: Valve, grace: timedelta) -> AsyncIterator[tuple[Worker, asyncio.Task[None]]]:
    dispatcher = Dispatcher()
    dispatcher.effect("Job", LocalEffect(valve.call))
    metrics, poll = WorkerMetrics(), timedelta(milliseconds=20)
    # A worker claims many events at once if it knows that they are quick.
    metrics.seconds_per_event["jobs"] = 0.001
    worker = Worker(bus, dispatcher, ["jobs"], concurrency=2, poll=poll, grace=grace, metrics=metrics)
    task = asyncio.create_task(worker.run())
    try:
        yield worker, task
    finally:
        valve.open()
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)


async def fill(bus: PostgresBus, valve: Valve) -> None:
    """Make the worker hold many events, of which two run."""
    valve.shut()
    await bus.publish(*numbered("Job", 20))
    await valve.holds(2)


async def waiting(bus: PostgresBus) -> list[tuple[str, int]]:
    found = await rows(bus, "SELECT status, attempt_count FROM kingdom.outbox_event ORDER BY status, attempt_count")
    return [(row["status"], row["attempt_count"]) for row in found]


async def test_stopping_gives_back_unstarted_events_and_waits_for_started_ones(dsn: str) -> None:
    valve = Valve()
    async with open_bus(dsn, stream("jobs", "Job")) as bus, working(bus, valve, LONG) as (worker, task):
        await fill(bus, valve)
        assert await waiting(bus) == [("PROCESSING", 1)] * 20
        worker.stop()

        async def given_back() -> bool:
            return await waiting(bus) == [("PENDING", 0)] * 18 + [("PROCESSING", 1)] * 2

        await eventually(given_back)
        assert not task.done()
        valve.open()
        await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert await waiting(bus) == [("PENDING", 0)] * 18


async def test_handlers_are_cancelled_at_the_end_of_the_grace_period_and_their_attempts_given_back(dsn: str) -> None:
    valve = Valve()
    async with open_bus(dsn, stream("jobs", "Job")) as bus, working(bus, valve, SOON) as (worker, task):
        await fill(bus, valve)
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert await waiting(bus) == [("PENDING", 0)] * 20
        assert await rows(bus, "SELECT state FROM kingdom.record") == [{"state": "SENT"}] * 2
        assert valve.inside == 0


async def test_stopping_at_once_does_not_wait_for_the_grace_period(dsn: str) -> None:
    valve = Valve()
    async with open_bus(dsn, stream("jobs", "Job")) as bus, working(bus, valve, LONG) as (worker, task):
        await fill(bus, valve)
        worker.stop(at_once=True)
        await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert await waiting(bus) == [("PENDING", 0)] * 20


async def test_a_suspect_is_given_back_while_another_event_runs(dsn: str) -> None:
    valve = Valve()
    async with open_bus(dsn, stream("jobs", "Job")) as bus, working(bus, valve, SOON) as (worker, task):
        valve.shut()
        await bus.publish(Envelope(type="Job"))
        await valve.holds(1)
        async with bus.pool.connection() as connection, connection.transaction():
            async with bus.join(connection) as transaction:
                await transaction.publish(Envelope(type="Job"))
            await connection.execute("UPDATE kingdom.outbox_event SET crash_count = 1 WHERE status = 'PENDING'")

        async def seen() -> bool:
            # If the worker kept the suspect, a crash of the other event would be counted for the suspect.
            found = await rows(bus, "SELECT lease_token, status FROM kingdom.outbox_event WHERE crash_count = 1")
            return [(row["lease_token"] > 0, row["status"]) for row in found] == [(True, "PENDING")]

        await eventually(seen)
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert await waiting(bus) == [("PENDING", 0)] * 2
    assert valve.most == 1


class StoppingBus(PostgresBus):
    """Stops its worker in the middle of a claim that finds nothing."""

    worker: Worker | None = None

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        deliveries = await super().claim(stream, limit, worker)
        if self.worker:
            self.worker.stop()
        return deliveries


async def test_a_stop_during_a_claim_does_not_wait_for_the_next_poll(dsn: str) -> None:
    async with StoppingBus(dsn, Topology([stream("jobs", "Job")]), [EFFECTS]) as bus:
        bus.worker = Worker(bus, Dispatcher(), ["jobs"], poll=LONG)
        await asyncio.wait_for(bus.worker.run(), PATIENCE_SECONDS)


class SilentBus(PostgresBus):
    """Never answers a claim, like a pool that waits for a lost server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked = asyncio.Event()

    async def claim(self, *_: Any) -> list[Delivery]:
        self.asked.set()
        await asyncio.Event().wait()
        return []


async def test_a_worker_ends_although_a_claim_never_returns(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingdom.bus.worker.worker._LAST_CLAIM_SECONDS", 0.01)
    async with SilentBus(dsn, Topology([stream("jobs", "Job")]), [EFFECTS]) as bus:
        worker = Worker(bus, Dispatcher(), ["jobs"])
        task = asyncio.create_task(worker.run())
        await asyncio.wait_for(bus.asked.wait(), PATIENCE_SECONDS)
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)


class LateBus(PostgresBus):
    """Calls `meanwhile` during the first claim that finds events, and answers some turns of the event loop later.

    The number of turns decides which comes first: the start of the claimed events, or their end.
    """

    meanwhile: Callable[[], object] | None = None
    turns = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.claimed_again = asyncio.Event()

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        if self.meanwhile is None:
            self.claimed_again.set()
        deliveries = await super().claim(stream, limit, worker)
        if deliveries and self.meanwhile:
            self.meanwhile()
            self.meanwhile = None
            for _ in range(self.turns):
                await asyncio.sleep(0)
        return deliveries


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_during_a_claim_gives_the_events_back(dsn: str, turns: int) -> None:
    dispatcher, valve = Dispatcher(), Valve()
    dispatcher.effect("Job", LocalEffect(valve.call))
    valve.shut()
    async with LateBus(dsn, Topology([stream("jobs", "Job")]), [EFFECTS]) as bus:
        worker = Worker(bus, dispatcher, ["jobs"], concurrency=3)
        bus.meanwhile, bus.turns = partial(worker.stop, at_once=True), turns
        await bus.publish(*numbered("Job", 3))
        await asyncio.wait_for(worker.run(), PATIENCE_SECONDS)
        assert await waiting(bus) == [("PENDING", 0)] * 3


async def test_a_stop_during_a_claim_gives_unstarted_events_back_at_once(dsn: str) -> None:
    valve = Valve()
    valve.shut()
    async with (
        LateBus(dsn, Topology([stream("jobs", "Job")]), [EFFECTS]) as bus,
        working(bus, valve, LONG) as (worker, _),
    ):
        # After so many turns the worker has noticed the stop, and waits for the claim.
        bus.meanwhile, bus.turns = worker.stop, 20
        await bus.publish(*numbered("Job", 20))

        async def given_back() -> bool:
            return await waiting(bus) == [("PENDING", 0)] * 18 + [("PROCESSING", 1)] * 2

        await eventually(given_back)
        assert valve.passed == 0


@pytest.mark.parametrize("turns", range(6))
async def test_a_process_that_was_suspended_past_its_lease_during_a_claim_continues(dsn: str, turns: int) -> None:
    lease, dispatcher, valve = timedelta(milliseconds=200), Dispatcher(), Valve()
    dispatcher.effect("Job", LocalEffect(valve.call))
    async with LateBus(dsn, Topology([stream("jobs", "Job", lease=lease)]), [EFFECTS]) as bus:
        # Block the whole process, as if it were stopped or its machine were asleep.
        bus.meanwhile, bus.turns = partial(time.sleep, lease.total_seconds()), turns
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher, concurrency=1):
            await asyncio.wait_for(bus.claimed_again.wait(), PATIENCE_SECONDS)


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_effects_run_concurrently_up_to_the_limit(dsn: str, concurrency: int) -> None:
    dispatcher, valve = Dispatcher(), Valve()
    dispatcher.effect("Job", LocalEffect(valve.call))
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 60))
        valve.shut()
        async with at_work(bus, dispatcher, concurrency=concurrency):
            await valve.holds(concurrency)
            valve.open()
            await until_all(bus, "DONE", 60)
    assert valve.most == concurrency


async def test_a_small_stream_is_served_next_to_a_large_backlog(dsn: str) -> None:
    dispatcher, order = Dispatcher(), list[str]()

    @dispatcher.reaction("Small")
    @dispatcher.reaction("Large")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        order.append(received.envelope.type)
        await transaction.append(LogEntry(type="handled", actor="test"))

    metrics = WorkerMetrics()
    # Both streams are known as quick, so a slow start does not make the claims of one smaller.
    metrics.seconds_per_event |= {"large": 0.001, "small": 0.001}
    async with open_bus(dsn, stream("large", "Large"), stream("small", "Small")) as bus:
        await bus.publish(*numbered("Large", 2000))
        await bus.publish(*numbered("Small", 50))
        async with at_work(bus, dispatcher, metrics=metrics):
            await until_all(bus, "DONE", 2050)
    last_small = len(order) - order[::-1].index("Small")
    assert last_small < 1000
    assert sorted(order) == ["Large"] * 2000 + ["Small"] * 50


@pytest.mark.parametrize("known_as_quick", [False, True], ids=["a few claimed", "many claimed"])
async def test_slow_calls_do_not_delay_other_streams(dsn: str, *, known_as_quick: bool) -> None:
    dispatcher, slow, other = Dispatcher(), Valve(), Valve()
    dispatcher.effect("Slow", LocalEffect(slow.call, target=Target(name="slow")))
    dispatcher.effect("Other", LocalEffect(other.call, target=Target(name="other")))
    handled: list[int] = []

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        handled.append(received.payload["n"])

    metrics = WorkerMetrics()
    if known_as_quick:
        metrics.seconds_per_event |= {"slow": 0.001, "others": 0.001, "jobs": 0.001}
    streams = (stream("slow", "Slow"), stream("others", "Other"), stream("jobs", "Job"))
    async with open_bus(dsn, *streams) as bus:
        await bus.publish(*numbered("Slow", 60))
        slow.shut()
        other.shut()
        async with at_work(bus, dispatcher, concurrency=4, metrics=metrics):
            await slow.holds(4)
            # The stream of slow calls waits, however many calls it has.
            await bus.publish(*numbered("Job", 40))
            await eventually(lambda: is_so(lambda: len(handled) == 40))
            # While the slow calls run, the other stream gets one slot and no more.
            await bus.publish(*numbered("Other", 10))
            await other.holds(1)
            await bus.publish(*numbered("Job", 40))
            await eventually(lambda: is_so(lambda: len(handled) == 80))
            assert (slow.inside, other.inside) == (4, 1)
            other.open()
            await eventually(lambda: is_so(lambda: other.passed == 10))
            assert slow.inside == 4
            slow.open()
            await until_all(bus, "DONE", 150)
    assert (slow.most, other.most) == (4, 1)


async def is_so(condition: Callable[[], bool]) -> bool:
    return condition()


class CancellationSwallowingBus(PostgresBus):
    """A bus that swallows a cancellation, as the wait for a connection can."""

    reaping = False

    async def reap(self) -> int:
        self.reaping = True
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 0


async def test_a_worker_ends_although_a_background_task_swallows_its_cancellation(dsn: str) -> None:
    async with CancellationSwallowingBus(dsn, Topology([stream("jobs", "Job")])) as bus, at_work(bus, Dispatcher()):

        async def is_reaping() -> bool:
            return bus.reaping

        await eventually(is_reaping)
