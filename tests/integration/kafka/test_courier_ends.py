"""A courier ends soon after it is asked to, although the brokers or the server never answer."""

import asyncio
import threading
from contextlib import ExitStack
from typing import Any, LiteralString

import pytest

from bench.kafka.broker import PrivateKafka
from bench.proxy import FaultyProxy
from bench.servers import LOOPBACK
from kingdom.backends.kafka import Brokers, Courier, client_calls, topic_writer
from kingdom.backends.kafka import courier as courier_module
from kingdom.backends.kafka.topic_writer import SentPosition, TopicWriter
from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres import bus as postgres_bus
from kingdom.bus import Envelope
from kingdom.errors import Unavailable
from tests.integration.kafka.counting import placed
from tests.integration.kafka.topics import payloads, run_until_first_piece, send_everything
from tests.patience import PATIENCE_SECONDS

# Longer than a call of a client takes on a busy machine, because each attempt has this limit.
CALL_SECONDS = 20.0
DROPS, FROZEN_SECONDS = 4, 1.5
EVENT = Envelope(type="OrderPlaced", payload={"number": 1}, partition_key="a")


@pytest.mark.parametrize("call", ["open", "send", "close"])
async def test_a_courier_ends_although_the_brokers_do_not_answer(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    is_blocked, goes_on, answered = threading.Event(), threading.Event(), getattr(TopicWriter, call)

    def block(writer: TopicWriter, *arguments: Any) -> SentPosition | None:
        is_blocked.set()
        goes_on.wait(PATIENCE_SECONDS)
        found: SentPosition | None = answered(writer, *arguments)
        return found

    monkeypatch.setattr(TopicWriter, call, block)
    monkeypatch.setattr(client_calls, "_LAST_ANSWER_SECONDS", 0.1)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await bus.publish(EVENT)
    if call == "close":
        await send_everything(courier, 1)
    else:
        await asyncio.to_thread(is_blocked.wait)
    courier.stop()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            await running
    finally:
        goes_on.set()
    assert is_blocked.is_set()


async def test_a_courier_that_ends_waits_for_the_answer_to_what_it_has_sent(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sending, goes_on, send = threading.Event(), threading.Event(), TopicWriter.send

    def send_later(writer: TopicWriter, *arguments: Any) -> None:
        is_sending.set()
        goes_on.wait(PATIENCE_SECONDS)
        send(writer, *arguments)

    monkeypatch.setattr(TopicWriter, "send", send_later)
    monkeypatch.setattr(client_calls, "_LAST_ANSWER_SECONDS", PATIENCE_SECONDS)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await bus.publish(EVENT)
    await asyncio.to_thread(is_sending.wait)
    courier.stop()
    goes_on.set()
    await running
    assert [payload["number"] for payload in payloads(brokers, "orders")] == [1]


@pytest.mark.kafka
@pytest.mark.parametrize("call", ["open", "send", "close"])
async def test_a_courier_continues_with_a_new_client_when_a_call_of_its_client_never_returns(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    hangs, ends, answered = [True], threading.Event(), getattr(TopicWriter, call)

    def hang_once(writer: TopicWriter, *arguments: Any) -> SentPosition | None:
        if hangs and hangs.pop():
            ends.wait()
        found: SentPosition | None = answered(writer, *arguments)
        return found

    def fail_once(*_: Any) -> None:
        monkeypatch.setattr(TopicWriter, "send", send)
        raise Unavailable("the brokers do not answer")

    monkeypatch.setattr(TopicWriter, call, hang_once)
    monkeypatch.setattr(client_calls, "_CALL_SECONDS", CALL_SECONDS)
    if call == "close":
        # A writer is closed after an error.
        send = TopicWriter.send
        monkeypatch.setattr(TopicWriter, "send", fail_once)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await bus.publish(EVENT)
    try:
        await send_everything(courier, 1)
        courier.stop()
        await running
    finally:
        ends.set()
    assert [payload["number"] for payload in payloads(brokers, "orders")] == [1]
    assert not hangs


@pytest.mark.kafka
async def test_a_courier_continues_although_its_connections_are_dropped_within_transactions(
    bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_calls, "_CALL_SECONDS", CALL_SECONDS)
    monkeypatch.setattr(topic_writer, "_ANSWER_SECONDS", CALL_SECONDS / 2)
    proxies: list[FaultyProxy] = []

    def open_proxy(port: int) -> int:
        proxies.append(stack.enter_context(FaultyProxy(LOOPBACK, port)))
        return proxies[0].port

    with ExitStack() as stack:
        kafka = stack.enter_context(PrivateKafka(front=open_proxy, quick=True))
        brokers = Brokers(servers=kafka.servers, prefix="kingdom.", partitions=4)
        courier = Courier(bus, brokers)
        running = asyncio.create_task(courier.run())
        publishing = asyncio.create_task(_publish_until_cancelled(bus))
        # In about a third of the rounds the client never returns.
        for _ in range(DROPS):
            await send_everything(courier, courier.sent_events + 20)
            proxies[0].freeze()
            await asyncio.sleep(FROZEN_SECONDS)
            proxies[0].drop_frozen()
            await send_everything(courier, courier.sent_events + 1)
        publishing.cancel()
        courier.stop()
        await running
        numbers = [payload["number"] for payload in payloads(brokers, "orders")]
        assert numbers == [*range(len(numbers))]


async def _publish_until_cancelled(bus: PostgresBus) -> None:
    number = 0
    while True:
        await bus.publish(placed(number))
        number += 1


# Another courier hangs in the middle of a tick; or the events of a tick cannot be read.
@pytest.mark.parametrize("lock", ["SELECT FROM kingdom.courier FOR UPDATE", "LOCK TABLE kingdom.courier_event"])
async def test_a_courier_ends_although_the_server_does_not_answer(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, lock: LiteralString
) -> None:
    monkeypatch.setattr(courier_module, "_LAST_ANSWER_SECONDS", 0.2)
    await bus.publish(EVENT)
    async with bus.pool.connection() as other, other.transaction():
        await other.execute(lock)
        courier = Courier(bus, brokers)
        running = asyncio.create_task(courier.run())
        courier.stop()
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            await running
    assert courier.sent_events == 0


async def test_a_courier_that_is_stopped_sends_no_further_pieces(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "PIECE_EVENTS", 2)
    await bus.publish(*(placed(number) for number in range(6)))
    await run_until_first_piece(Courier(bus, brokers), monkeypatch)
    assert len(payloads(brokers, "orders")) == 2
    successor = Courier(bus, brokers)
    running = asyncio.create_task(successor.run())
    await send_everything(successor, 4)
    successor.stop()
    await running
    assert len(payloads(brokers, "orders")) == 6


async def test_a_courier_waits_for_a_tick_that_takes_long_to_sort(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = bus.queries["events_of_tick"].rstrip("; \n")
    slow = f"SELECT events.* FROM (SELECT pg_sleep(2)) AS pause, ({query}) AS events"  # noqa: S608 - our own text
    monkeypatch.setattr(bus, "queries", {**bus.queries, "events_of_tick": slow})
    monkeypatch.setattr(postgres_bus, "_ANSWER_SECONDS", 1.0)
    await bus.publish(EVENT)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await send_everything(courier, 1)
    courier.stop()
    await running
    assert [payload["number"] for payload in payloads(brokers, "orders")] == [1]
