import asyncio
import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncConnection
from structlog.testing import capture_logs

from kingdom.backends.kafka import Brokers, Courier
from kingdom.backends.kafka import courier as courier_module
from kingdom.backends.kafka.brokers import partition_of, read_headers
from kingdom.backends.kafka.courier import LEASE
from kingdom.backends.kafka.courier_queue import CourierQueue
from kingdom.backends.kafka.topic_writer import CourierFenced, SentPosition, TopicWriter, cursor_topic
from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.backends.postgres.rows import CARRIED_BYTES_MAX, KEY_BYTES_MAX
from kingdom.bus import Envelope, Record, Retention, Stream, Topology
from kingdom.bus.operations import Situation
from kingdom.bus.why import why
from kingdom.errors import Conflict, MalformedEvent, Misconfigured
from tests.integration.kafka.topics import committed_messages, payloads, send_everything
from tests.integration.running import eventually, rows


def placed(number: int, key: str = "a") -> Envelope:
    return Envelope(type="OrderPlaced", payload={"number": number}, partition_key=key)


def numbers(brokers: Brokers, key: str | None = None) -> list[int]:
    return [payload["number"] for payload in payloads(brokers, "orders", key)]


async def test_events_reach_the_topic_in_the_order_of_their_key(
    bus: PostgresBus, brokers: Brokers, courier: Courier
) -> None:
    await bus.publish(*(placed(number, key) for number in range(10) for key in "ab"))
    await send_everything(courier, 20)
    assert numbers(brokers, "a") == numbers(brokers, "b") == list(range(10))
    assert {each.partition() for each in committed_messages(brokers, "orders") if each.key() == b"a"} == {
        partition_of("a", brokers.partitions)
    }


@pytest.mark.kafka
async def test_only_the_stream_with_a_transport_leaves_the_store(bus: PostgresBus, courier: Courier) -> None:
    await bus.publish(placed(1))
    await send_everything(courier, 1)
    (delivery,) = await bus.claim("audit", 10, "worker")
    assert delivery.envelope.payload == {"number": 1}
    assert await bus.claim("orders", 10, "worker") == []


@pytest.mark.kafka
async def test_a_message_has_the_headers_of_its_event(bus: PostgresBus, brokers: Brokers, courier: Courier) -> None:
    envelope = placed(1)
    await bus.publish(envelope)
    await send_everything(courier, 1)
    (message,) = committed_messages(brokers, "orders")
    headers = {name: value.decode() for name, value in read_headers(message).items()}
    assert headers["eventId"] == headers["ce_id"] == str(envelope.event_id)
    assert headers["type"] == headers["ce_type"] == "OrderPlaced"
    assert headers["traceId"] == envelope.trace_id
    assert headers["ce_specversion"] == "1.0"
    assert Envelope.from_wire(json.loads(message.value() or b"")).event_id == envelope.event_id


@pytest.mark.kafka
async def test_an_event_that_is_rolled_back_is_never_sent(
    bus: PostgresBus, brokers: Brokers, courier: Courier, dsn: str
) -> None:
    async with await AsyncConnection.connect(dsn) as connection:
        async with bus.join(connection) as transaction:
            await transaction.publish(placed(1))
        await connection.rollback()
    await bus.publish(placed(2))
    await send_everything(courier, 1)
    assert numbers(brokers) == [2]


async def test_a_transaction_whose_record_has_changed_publishes_nothing(bus: PostgresBus) -> None:
    record = Record(kind="counter", id="a", state="open", doc={})
    async with bus.transaction() as transaction:
        await transaction.put(record)
    with pytest.raises(Conflict):
        await put_and_publish(bus, record)
    assert await rows(bus, "SELECT seq FROM kingdom.courier_event") == []


async def put_and_publish(bus: PostgresBus, record: Record) -> None:
    async with bus.transaction() as transaction:
        await transaction.put(record)
        await transaction.publish(Envelope(type="OrderPlaced", payload={"number": 1}, stream="orders"))


@pytest.mark.kafka
async def test_an_id_that_the_publisher_chose_is_sent_once(
    bus: PostgresBus, brokers: Brokers, courier: Courier
) -> None:
    first = Envelope(type="OrderPlaced", payload={"number": 1}, event_id=uuid4(), stream="orders")
    assert await bus.publish(first) == ()
    (duplicate,) = await bus.publish(first)
    assert duplicate.envelope == first
    await bus.publish(placed(2))
    await send_everything(courier, 2)
    assert sorted(numbers(brokers)) == [1, 2]


@pytest.mark.kafka
async def test_an_event_that_is_too_large_for_its_transport_is_refused(bus: PostgresBus) -> None:
    with pytest.raises(MalformedEvent, match="publish a reference"):
        await bus.publish(Envelope(type="OrderPlaced", payload={"text": "x" * CARRIED_BYTES_MAX}))


@pytest.mark.kafka
async def test_a_key_that_the_outbox_could_not_take_in_is_refused(bus: PostgresBus) -> None:
    await bus.publish(placed(1, "x" * KEY_BYTES_MAX))
    with pytest.raises(MalformedEvent, match="publish a shorter one"):
        await bus.publish(placed(1, "x" * (KEY_BYTES_MAX + 1)))


@pytest.mark.kafka
async def test_events_are_sent_in_the_order_of_publishing_and_not_of_transaction_starts(
    bus: PostgresBus, brokers: Brokers, courier: Courier, dsn: str
) -> None:
    async with await AsyncConnection.connect(dsn) as early, early.transaction():
        # This transaction has a lower number than the one that publishes event 1.
        await early.execute("SELECT pg_current_xact_id()")
        await bus.publish(placed(1))
        async with bus.join(early) as transaction:
            await transaction.publish(placed(2))
    await send_everything(courier, 2)
    assert numbers(brokers) == [1, 2]


async def test_events_within_a_tick_are_in_the_order_of_publishing(bus: PostgresBus, dsn: str) -> None:
    queue = CourierQueue(bus)
    await queue.hold("courier", LEASE)
    async with await AsyncConnection.connect(dsn) as early, early.transaction():
        await early.execute("SELECT pg_current_xact_id()")
        await bus.publish(placed(1))
        async with bus.join(early) as transaction:
            await transaction.publish(placed(2))
    (tick,) = await queue.take_ticks(0)
    (piece,) = [piece async for piece in queue.pieces(tick, 0, 10)]
    assert [json.loads(event.value)["payload"]["number"] for event in piece.events] == [1, 2]


async def test_an_event_whose_transaction_commits_late_is_not_skipped(
    bus: PostgresBus, brokers: Brokers, courier: Courier, dsn: str
) -> None:
    async with await AsyncConnection.connect(dsn) as slow, slow.transaction():
        async with bus.join(slow) as transaction:
            await transaction.publish(placed(1, "slow"))
        # This event has a higher number, and it is sent while the other transaction is still open.
        await bus.publish(placed(2, "fast"))
        await send_everything(courier, 1)
        assert numbers(brokers) == [2]
    await send_everything(courier, 2)
    assert sorted(numbers(brokers)) == [1, 2]


async def test_events_that_a_courier_did_not_commit_are_sent_once_by_its_successor(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.publish(placed(1), placed(2))
    queue, store = CourierQueue(bus), uuid4()
    (tick,) = await queue.take_ticks(0)
    (events,) = [piece.events async for piece in queue.pieces(tick, 0, 10)]
    dying, successor = writer(brokers, store), writer(brokers, store)
    assert dying.open() == SentPosition(0)
    commit = dying._commit
    monkeypatch.setattr(dying, "_commit", die)
    with pytest.raises(RuntimeError, match="killed"):
        dying.send(tick.number, events, SentPosition(tick.number))
    assert successor.open() == SentPosition(0)
    successor.send(tick.number, events, SentPosition(tick.number))
    assert numbers(brokers) == [1, 2]
    with pytest.raises(CourierFenced):
        commit()
    assert numbers(brokers) == [1, 2]
    successor.close()


async def test_a_courier_that_hung_while_another_took_over_is_fenced_and_closes(brokers: Brokers) -> None:
    store = uuid4()
    hung, successor = writer(brokers, store), writer(brokers, store)
    hung.open()
    successor.open()
    with pytest.raises(CourierFenced):
        hung.send(1, (), SentPosition(1))
    hung.close()
    successor.send(1, (), SentPosition(1))
    successor.close()


def die() -> None:
    raise RuntimeError("killed")


async def test_a_courier_that_dies_right_after_its_commit_has_stored_its_position(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.publish(placed(1))
    queue, store = CourierQueue(bus), uuid4()
    (tick,) = await queue.take_ticks(0)
    (events,) = [piece.events async for piece in queue.pieces(tick, 0, 10)]
    dying, successor = writer(brokers, store), writer(brokers, store)
    dying.open()
    commit = dying._commit

    def commit_and_die() -> None:
        commit()
        die()

    monkeypatch.setattr(dying, "_commit", commit_and_die)
    with pytest.raises(RuntimeError, match="killed"):
        dying.send(tick.number, events, SentPosition(tick.number))
    assert successor.open() == SentPosition(tick.number)
    assert numbers(brokers) == [1]
    successor.close()


@pytest.mark.kafka
async def test_a_successor_continues_after_the_last_message_that_the_brokers_have(
    bus: PostgresBus, brokers: Brokers
) -> None:
    await bus.publish(*(placed(number) for number in range(5)))
    queue, store = CourierQueue(bus), uuid4()
    (tick,) = await queue.take_ticks(0)
    pieces = [piece.events async for piece in queue.pieces(tick, 0, 3)]
    killed = writer(brokers, store)
    killed.open()
    # The courier dies before it stores its position.
    killed.send(tick.number, pieces[0], SentPosition(tick.number, pieces[0][-1].seq))
    successor = writer(brokers, store)
    position = successor.open()
    assert position == SentPosition(tick.number, pieces[0][-1].seq)
    rest = [piece.events async for piece in queue.pieces(tick, position.seq or 0, 3)]
    successor.send(tick.number, rest[0], SentPosition(tick.number))
    assert numbers(brokers) == [0, 1, 2, 3, 4]
    successor.close()


@pytest.mark.kafka
async def test_a_second_courier_takes_over_when_the_first_stops(bus: PostgresBus, brokers: Brokers) -> None:
    first, second = Courier(bus, brokers, name="first"), Courier(bus, brokers, name="second")
    running = [asyncio.create_task(first.run())]
    await bus.publish(placed(1))
    await send_everything(first, 1)
    running.append(asyncio.create_task(second.run()))
    first.stop()
    await bus.publish(placed(2))
    await send_everything(second, 1)
    second.stop()
    await asyncio.gather(*running)
    assert numbers(brokers) == [1, 2]


@pytest.mark.kafka
async def test_a_courier_stores_its_progress_at_intervals_and_when_it_stops(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "_REPORT_SECONDS", 3600.0)
    reported = "SELECT sent, (SELECT max(number) FROM kingdom.courier_tick) AS last FROM kingdom.courier"
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    for number in range(3):
        await bus.publish(placed(number))
        await send_everything(courier, number + 1)
    (row,) = await rows(bus, reported)
    assert row["sent"] < row["last"]
    courier.stop()
    await running
    (row,) = await rows(bus, reported)
    assert row["sent"] == row["last"]


async def test_a_courier_waits_until_the_brokers_show_a_new_topic(
    bus: PostgresBus, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, first_answers = Brokers.count_partitions, [dict[str, int]()]

    def show_later(brokers: Brokers, topics: list[str]) -> dict[str, int]:
        return first_answers.pop() if first_answers else count(brokers, topics)

    monkeypatch.setattr(Brokers, "count_partitions", show_later)
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    await bus.publish(placed(1))
    await send_everything(courier, 1)
    courier.stop()
    await running
    assert first_answers == []


async def test_events_of_a_stream_that_is_no_longer_on_kafka_are_sent_and_delay_no_others(
    bus: PostgresBus, brokers: Brokers
) -> None:
    former = Topology([Stream(name="former", transport="kafka", subscribes=frozenset({"Former"}))])
    async with PostgresBus(bus.dsn, former) as earlier:
        await earlier.publish(Envelope(type="Former", payload={"number": 1}))
    await bus.publish(placed(2))
    with capture_logs() as logs:
        courier = Courier(bus, brokers)
        running = asyncio.create_task(courier.run())
        await send_everything(courier, 2)
        courier.stop()
        await running
    assert payloads(brokers, "former") == [{"number": 1}]
    assert numbers(brokers) == [2]
    (told,) = [each for each in logs if each["log_level"] == "error"]
    assert told["streams"] == ["former"]


@pytest.mark.kafka
async def test_the_topics_of_another_store_are_refused(brokers: Brokers) -> None:
    owner, stranger = writer(brokers, uuid4()), writer(brokers, uuid4())
    owner.open()
    owner.send(1, (), SentPosition(1))
    with pytest.raises(Misconfigured, match="KINGDOM_KAFKA_PREFIX"):
        stranger.open()
    owner.close()
    stranger.close()


@pytest.mark.kafka
async def test_why_answers_whether_the_courier_has_sent_an_event(bus: PostgresBus, brokers: Brokers) -> None:
    envelope, operations = placed(1), PostgresOperations(bus)
    await bus.publish(envelope)

    async def situation() -> Situation:
        return next(each for each in await operations.situations(envelope.event_id) if each.stream == "orders")

    assert "no courier runs" in why(await situation())
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())

    async def is_sent() -> bool:
        return (await situation()).status == "SENT"

    await eventually(is_sent)
    assert "has sent it" in why(await situation())
    assert await courier.lag() == timedelta()
    courier.stop()
    await running


@pytest.mark.kafka
async def test_retention_keeps_the_days_of_unsent_events(bus: PostgresBus, brokers: Brokers) -> None:
    operations, keep = PostgresOperations(bus), Retention(archive=timedelta(days=2))
    await bus.publish(placed(1))
    await rows(bus, "UPDATE kingdom.courier_event SET created_at = now() - interval '10 days'")
    await operations.retain(keep)
    assert len(await rows(bus, "SELECT seq FROM kingdom.courier_event")) == 1
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())

    async def is_noted() -> bool:
        return await courier.lag() == timedelta()

    await eventually(is_noted)
    courier.stop()
    await running
    await operations.retain(keep)
    assert await rows(bus, "SELECT seq FROM kingdom.courier_event") == []


def writer(brokers: Brokers, store: UUID) -> TopicWriter:
    topic = brokers.topic("orders")
    brokers.create_topics({topic: brokers.partitions, cursor_topic(brokers): 1})
    return TopicWriter(brokers, store, {topic: brokers.partitions})
