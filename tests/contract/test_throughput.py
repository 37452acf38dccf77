"""How many events each stream has handled in each minute: counted by every process, and read at once."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from kingdom.bus import Bus, Dead, Dispatcher, Done, Event, Outcome, Transaction, Worker
from kingdom.bus.maintenance import report_throughput
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.throughput import HandledCounts, StreamThroughput, read_throughput, sum_throughput
from kingdom.clock import utc_now
from kingdom.errors import Conflict
from tests.contract.scene import Scene, eventually, ping

NOW = datetime(2026, 11, 18, 12, 0, 30, tzinfo=UTC)
OFTEN = timedelta(milliseconds=20)


class Counting:
    """The counts of one process, whose clock the test sets."""

    def __init__(self) -> None:
        self.now = NOW
        self.counts = HandledCounts(clock=lambda: self.now)

    def add(self, stream: str, count: int, *, minutes_ago: int) -> None:
        self.now = NOW - timedelta(minutes=minutes_ago)
        self.counts.add(stream, count)


async def read(bus: Bus, now: datetime = NOW) -> dict[str, StreamThroughput]:
    async with bus.transaction() as transaction:
        return {each.stream: each for each in await read_throughput(transaction, now)}


async def test_each_of_the_last_sixty_minutes_that_have_ended_has_its_count(scene: Scene) -> None:
    process = Counting()
    for minutes_ago, count in ((61, 7), (60, 1), (2, 3), (1, 4), (0, 9)):
        process.add("free", count, minutes_ago=minutes_ago)
    process.add("other", 5, minutes_ago=1)
    process.add("line", 6, minutes_ago=61)
    await process.counts.report(scene.bus)
    found = await read(scene.bus)
    assert found.keys() == {"free", "other"}, "a stream that has handled nothing in the last hour is not shown"
    assert found["free"].minutes == (1, *[0] * 57, 3, 4)
    assert found["free"].until == NOW.replace(second=0)
    assert (found["free"].last_hour, found["free"].per_minute) == (8, 7 / 5)
    assert sum_throughput(found.values()) == [1, *[0] * 57, 3, 9]


async def test_the_reports_of_all_processes_add_up_even_if_they_collide(scene: Scene) -> None:
    processes = [Counting() for _ in range(5)]
    async with scene.second() as second:
        for _ in range(4):
            for number, process in enumerate(processes):
                process.add("free", 1, minutes_ago=1 + number % 2)
            reports = (each.counts.report(bus) for each, bus in zip(processes, [scene.bus, second] * 3, strict=False))
            results = await asyncio.gather(*reports, return_exceptions=True)
            assert {type(each) for each in results} <= {type(None), Conflict}
    for process in processes:
        await process.counts.report(scene.bus)
    assert (await read(scene.bus))["free"].minutes[-2:] == (8, 12)


async def test_a_record_does_not_grow_with_time(scene: Scene) -> None:
    process = Counting()
    for minutes_ago in range(1000, -1, -1):
        process.add("free", 1, minutes_ago=minutes_ago)
    await process.counts.report(scene.bus)
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("throughput", "free")
    assert record is not None
    assert len(record.doc) == 120
    assert (await read(scene.bus))["free"].last_hour == 60


async def test_counts_that_nothing_reports_are_dropped_the_oldest_first(scene: Scene) -> None:
    process = Counting()
    process.add("line", 5, minutes_ago=2)
    process.add("free", 6, minutes_ago=2)
    for minutes_ago in range(20_000, 20_000 - 9_999, -1):
        process.add("other", 1, minutes_ago=minutes_ago)
    await process.counts.report(scene.bus)
    found = await read(scene.bus)
    assert {stream: each.last_hour for stream, each in found.items()} == {"free": 6}


async def test_a_process_reports_the_events_that_its_workers_have_handled(scene: Scene) -> None:
    dispatcher, metrics = Dispatcher(), WorkerMetrics(CollectorRegistry())

    @dispatcher.reaction("Ping")
    async def handle(event: Event[Any], _transaction: Transaction) -> Outcome:
        return Dead("odd") if event.envelope.payload["number"] % 2 else Done()

    await scene.bus.publish(*map(ping, range(7)))
    worker = Worker(scene.bus, dispatcher, ["free"], metrics=metrics, poll=OFTEN)
    tasks = [
        asyncio.create_task(worker.run()),
        asyncio.create_task(report_throughput(scene.bus, metrics.handled, every=OFTEN)),
    ]
    try:

        async def counted() -> bool:
            # The minute in which an event was handled must have ended.
            soon = utc_now() + timedelta(minutes=1)
            return Counter({name: each.last_hour for name, each in (await read(scene.bus, soon)).items()})["free"] == 4

        await eventually(counted, "the report of four handled events")
    finally:
        worker.stop()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
