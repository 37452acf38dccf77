"""A courier keeps its role and its place: over long calls, without brokers, and after the server has lost ticks."""

import asyncio
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, LiteralString

import pytest
from psycopg import AsyncConnection

from kingdom.backends.kafka import Brokers, Courier, courier_queue
from kingdom.backends.kafka import courier as courier_module
from kingdom.backends.kafka.courier_queue import CourierQueue, CourierTerm
from kingdom.backends.kafka.topic_writer import TopicWriter
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Envelope
from kingdom.errors import Unavailable
from tests.integration.kafka.counting import placed
from tests.integration.kafka.topics import payloads, run_until_first_piece, send_everything
from tests.integration.running import eventually, rows
from tests.patience import PATIENCE_SECONDS

_LOCK = 7
_WAITS = """SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid
             WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""


class UnreachableBrokers(Brokers):
    """Brokers that one courier cannot reach, while others can."""

    def create_topics(self, partitions: Mapping[str, int]) -> None:
        raise Unavailable(f"no broker answers, so {len(partitions)} topics are not created")


async def test_a_courier_renews_its_role_while_the_server_sorts_a_tick(
    bus: PostgresBus, brokers: Brokers, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = bus.queries["events_of_tick"].rstrip("; \n")
    blocked = f"SELECT events.* FROM (SELECT pg_advisory_xact_lock({_LOCK})) AS sorted, ({query}) AS events"  # noqa: S608 - our own text
    monkeypatch.setattr(bus, "queries", {**bus.queries, "events_of_tick": blocked})
    await bus.publish(placed(1))
    courier, ends = Courier(bus, brokers, lease=timedelta(seconds=1)), set[datetime]()

    async def is_renewed() -> bool:
        ends.update(row["expires_at"] for row in await rows(bus, "SELECT expires_at FROM kingdom.courier"))
        if not await exists(bus, _WAITS):
            ends.clear()
        return len(ends) > 3

    async with await AsyncConnection.connect(dsn, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        running = asyncio.create_task(courier.run())
        await eventually(is_renewed)
    await send_everything(courier, 1)
    courier.stop()
    await running
    assert payloads(brokers, "orders") == [{"number": 1}]


async def test_a_courier_that_cannot_reach_the_brokers_leaves_its_role_to_another(
    bus: PostgresBus, brokers: Brokers
) -> None:
    hour = timedelta(hours=1)
    unreachable = UnreachableBrokers(servers=brokers.servers, prefix=brokers.prefix, partitions=brokers.partitions)
    first, second = Courier(bus, unreachable, lease=hour), Courier(bus, brokers, lease=hour)
    running = [asyncio.create_task(first.run())]
    await eventually(lambda: exists(bus, "SELECT 1 FROM kingdom.courier"))
    running.append(asyncio.create_task(second.run()))
    await bus.publish(placed(1))
    await send_everything(second, 1)
    for courier in (first, second):
        courier.stop()
    await asyncio.gather(*running)


async def test_events_after_a_failover_that_has_lost_a_tick_are_all_sent(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose_a_tick_that_is_being_sent(bus, brokers, monkeypatch)
    await bus.publish(*(placed(number) for number in range(10, 14)))
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await send_everything(courier, 4)
    courier.stop()
    await running
    assert [payload["number"] for payload in payloads(brokers, "orders")] == [0, 1, 10, 11, 12, 13]


async def test_a_courier_waits_for_events_after_a_failover_that_has_lost_a_tick_with_all_its_events(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose_a_tick_that_is_being_sent(bus, brokers, monkeypatch)
    waits, wait = asyncio.Event(), CourierQueue.wait

    async def note_and_wait(queue: CourierQueue, at_most: timedelta) -> None:
        waits.set()
        await wait(queue, at_most)

    monkeypatch.setattr(CourierQueue, "wait", note_and_wait)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        await waits.wait()
    courier.stop()
    await running


async def test_an_unexpected_error_of_a_renewal_ends_the_courier(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_first_renewal(monkeypatch)
    with pytest.raises(LookupError, match="damaged"):
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            await Courier(bus, brokers, lease=timedelta(seconds=1)).run()


async def test_an_unexpected_error_of_a_renewal_ends_a_courier_that_is_sending(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, send = fail_at_first_renewal(monkeypatch), TopicWriter.send

    def send_late(writer: TopicWriter, *arguments: Any) -> None:
        assert failed.wait(PATIENCE_SECONDS / 2)
        send(writer, *arguments)

    monkeypatch.setattr(courier_module, "PIECE_EVENTS", 2)
    monkeypatch.setattr(TopicWriter, "send", send_late)
    await bus.publish(*(placed(number) for number in range(4)))
    with pytest.raises(LookupError, match="damaged"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await Courier(bus, brokers, lease=timedelta(seconds=1)).run()


async def test_a_piece_of_large_events_has_fewer_of_them(bus: PostgresBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_queue, "PIECE_BYTES", 10_000)
    large = {"text": "x" * 4000}
    await bus.publish(*(Envelope(type="OrderPlaced", payload=large, partition_key="a") for _ in range(5)))
    queue = CourierQueue(bus)
    (tick,) = await queue.take_ticks(0)
    pieces = [piece async for piece in queue.pieces(tick, 0, 100)]
    assert [(len(piece.events), piece.is_last) for piece in pieces] == [(2, False), (2, False), (1, True)]


async def test_an_event_larger_than_a_piece_is_a_piece_of_its_own(
    bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_queue, "PIECE_BYTES", 1)
    await bus.publish(placed(1), placed(2))
    queue = CourierQueue(bus)
    (tick,) = await queue.take_ticks(0)
    assert [len(piece.events) async for piece in queue.pieces(tick, 0, 100)] == [1, 1]


async def test_a_tick_whose_events_are_all_sent_ends_with_an_empty_piece(bus: PostgresBus) -> None:
    await bus.publish(placed(1))
    queue = CourierQueue(bus)
    (tick,) = await queue.take_ticks(0)
    (piece,) = [piece async for piece in queue.pieces(tick, 0, 100)]
    (rest,) = [piece async for piece in queue.pieces(tick, piece.events[-1].seq, 100)]
    assert (rest.events, rest.is_last) == ([], True)


async def exists(bus: PostgresBus, query: LiteralString) -> bool:
    return bool(await rows(bus, query))


async def lose_a_tick_that_is_being_sent(bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send half of a tick, then fail over to a server that has nothing of it and gives the same numbers again."""
    monkeypatch.setattr(courier_module, "PIECE_EVENTS", 2)
    await bus.publish(*(placed(number) for number in range(4)))
    await run_until_first_piece(Courier(bus, brokers), monkeypatch)
    await rows(bus, "TRUNCATE kingdom.courier_event RESTART IDENTITY")
    await rows(bus, "DELETE FROM kingdom.courier_tick")


def fail_at_first_renewal(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the first renewal of a role raise an unexpected error, and return an event that is then set."""
    hold, calls, failed = CourierQueue.hold, count(1), threading.Event()

    async def fail_once(queue: CourierQueue, holder: str, lease: timedelta) -> CourierTerm | None:
        if next(calls) == 2:
            failed.set()
            raise LookupError("a damaged index")
        return await hold(queue, holder, lease)

    monkeypatch.setattr(CourierQueue, "hold", fail_once)
    return failed
