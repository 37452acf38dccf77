import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from secrets import token_urlsafe
from typing import Any

import pytest
from confluent_kafka import Producer

from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.kafka.messages import MALFORMED
from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.backends.postgres.rows import KEY_BYTES_MAX, to_json
from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dead,
    Defer,
    Dispatcher,
    Done,
    Envelope,
    Event,
    ForeignMessage,
    ForeignTopic,
    Outcome,
    Retry,
    Stream,
    Topology,
    Transaction,
)
from kingdom.bus.operations import DeadFilter, DeadLetter
from kingdom.bus.outcome import Release
from kingdom.clock import utc_now
from tests.integration.kafka.conftest import COUNTERS, TOPOLOGY
from tests.integration.kafka.counting import (
    Open,
    append,
    append_and_settle,
    claim_all,
    claim_one,
    counting,
    numbers,
    placed,
    until_handled,
)
from tests.integration.local_effect import LocalEffect
from tests.integration.running import at_work, eventually, rows
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("courier")


async def test_a_worker_handles_each_event_once_in_the_order_of_its_key(kafka_bus: Open) -> None:
    async with kafka_bus() as bus, at_work(bus, counting(), "orders"):
        await bus.publish(*(placed(number, key) for number in range(50) for key in "abc"))
        for key in "abc":
            await until_handled(bus, list(range(50)), key)
        # The offset was stored together with the records, so nothing was written to the outbox.
        assert await rows(bus, "SELECT id FROM kingdom.outbox_all WHERE stream = 'orders'") == []


@pytest.mark.kafka
async def test_a_second_worker_continues_after_the_last_settled_event(kafka_bus: Open) -> None:
    async with kafka_bus() as bus, at_work(bus, counting(), "orders"):
        await bus.publish(*(placed(number) for number in range(10)))
        await until_handled(bus, list(range(10)))
    async with kafka_bus() as bus, at_work(bus, counting(), "orders"):
        await bus.publish(*(placed(number) for number in range(10, 20)))
        await until_handled(bus, list(range(20)))


@pytest.mark.kafka
async def test_a_retried_event_holds_back_only_its_key(kafka_bus: Open) -> None:
    attempts: list[int] = []

    def outcome(event: Event[Any]) -> Outcome | None:
        if event.payload["number"] == 1 and event.envelope.partition_key == "a":
            attempts.append(event.attempt)
            return Retry(timedelta(milliseconds=10)) if event.attempt < 3 else None
        return None

    async with kafka_bus() as bus, at_work(bus, counting(outcome), "orders"):
        await bus.publish(*(placed(number, key) for number in range(5) for key in "ab"))
        await until_handled(bus, list(range(5)), "b")
        await until_handled(bus, list(range(5)), "a")
        assert attempts == [1, 2, 3]


async def dead_letter(operations: PostgresOperations) -> DeadLetter:
    letters: list[DeadLetter] = []

    async def is_dead() -> bool:
        letters[:] = await operations.dead_letters(DeadFilter(stream="orders"), 10)
        return bool(letters)

    await eventually(is_dead)
    (letter,) = letters
    return letter


@pytest.mark.kafka
async def test_a_dead_event_blocks_its_key_until_it_is_redriven(kafka_bus: Open) -> None:
    is_poison = True

    def outcome(event: Event[Any]) -> Outcome | None:
        return Dead("poison") if is_poison and event.payload["number"] == 1 else None

    async with kafka_bus() as bus, at_work(bus, counting(outcome), "orders"):
        operations = PostgresOperations(bus)
        await bus.publish(*(placed(number) for number in range(3)), placed(9, "b"))
        await until_handled(bus, [9], "b")
        await until_handled(bus, [0])
        letter = await dead_letter(operations)
        assert (letter.attempt, letter.error_message) == (1, "poison")
        # A later message with the same key waits behind the dead letter, too.
        await bus.publish(placed(3), placed(10, "b"))
        await until_handled(bus, [9, 10], "b")
        is_poison = False
        await operations.redrive([letter.position], actor="test")
        await until_handled(bus, [0, 1, 2, 3])


@pytest.mark.kafka
async def test_an_event_that_fails_while_an_earlier_one_is_redriven_waits_behind_it_without_an_attempt(
    dsn: str, brokers: Brokers
) -> None:
    runs: list[tuple[int, int]] = []
    second_may_fail, first_may_end = asyncio.Event(), asyncio.Event()

    async def handle(event: Event[Any], transaction: Transaction) -> Outcome | None:
        number = event.payload["number"]
        runs.append((number, event.attempt))
        if runs == [(0, 1)]:
            return Dead("poison")
        if number == 0:
            await first_may_end.wait()
        elif not first_may_end.is_set():
            await second_may_fail.wait()
            raise ValueError("the first event is missing")
        await append(event, transaction)
        return None

    async def until_runs(*expected: tuple[int, int]) -> None:
        async def have_run() -> bool:
            return len(runs) >= len(expected)

        await eventually(have_run)
        assert runs == list(expected)

    dispatcher = Dispatcher()
    dispatcher.reaction("OrderPlaced")(handle)
    skipping = Topology([replace(TOPOLOGY.stream("orders"), on_dead="skip")])
    async with KafkaBus(dsn, skipping, [COUNTERS], brokers=brokers) as bus, at_work(bus, dispatcher, "orders"):
        operations = PostgresOperations(bus)
        await bus.publish(placed(0))
        letter = await dead_letter(operations)
        await bus.publish(placed(1), placed(2))
        await until_runs((0, 1), (1, 1))
        await operations.redrive([letter.position], actor="test")
        await until_runs((0, 1), (1, 1), (0, 1))
        second_may_fail.set()

        async def all_wait() -> bool:
            return len(await rows(bus, "SELECT id FROM kingdom.outbox_event WHERE stream = 'orders'")) == 3

        await eventually(all_wait)
        first_may_end.set()
        await until_handled(bus, [0, 1, 2])
        assert runs == [(0, 1), (1, 1), (0, 1), (1, 1), (2, 1)]


@pytest.mark.kafka
async def test_a_deferred_event_and_one_that_is_not_due_wait_in_the_store(kafka_bus: Open) -> None:
    def outcome(event: Event[Any]) -> Outcome | None:
        is_first = event.payload["number"] == 0 and event.attempt == 1
        return Defer.by(timedelta(hours=1), "later") if is_first else None

    async with kafka_bus() as bus, at_work(bus, counting(outcome), "orders"):
        deferred, delayed = placed(0, "a"), placed(0, "b")
        await bus.publish(deferred, placed(1, "a"))
        await bus.publish(delayed, at=utc_now() + timedelta(hours=1))
        operations = PostgresOperations(bus)

        async def both_wait() -> bool:
            found = [*await operations.situations(deferred.event_id), *await operations.situations(delayed.event_id)]
            return [each.status for each in found if each.stream == "orders"] == ["PENDING", "PENDING"]

        await eventually(both_wait)
        assert await numbers(bus, "a") == await numbers(bus, "b") == []


@pytest.mark.kafka
async def test_a_delayed_event_enters_the_outbox_after_the_events_of_its_key_before_it(kafka_bus: Open) -> None:
    async with kafka_bus() as bus:
        async with bus.transaction() as transaction:
            await transaction.publish(placed(0), placed(0, "b"))
            await transaction.publish(placed(1), at=utc_now() + timedelta(hours=1))
            await transaction.publish(placed(2), placed(1, "b"))
        first = await claim_all(bus, 3)
        claimed = sorted((each.envelope.partition_key, each.envelope.payload["number"]) for each in first)
        assert claimed == [("a", 0), ("b", 0), ("b", 1)]
        waiting = "SELECT payload_json->'number' AS n FROM kingdom.outbox_all WHERE stream = 'orders' ORDER BY id"
        # In the outbox, another process could run the delayed event before the first one is settled.
        assert await rows(bus, waiting) == []
        for delivery in first:
            await append_and_settle(bus, delivery)

        async def both_wait() -> bool:
            await bus.claim("orders", 10, "worker")
            found = await rows(bus, waiting)
            return [row["n"] for row in found] == [1, 2]

        await eventually(both_wait)
        assert await numbers(bus, "a") == [0]


@pytest.mark.kafka
async def test_an_effect_runs_from_the_store_and_through_its_ledger(kafka_bus: Open) -> None:
    calls: list[Any] = []

    async def call(attempt: Attempt) -> CallResult:
        calls.append(attempt.request["number"])
        return Acked({})

    dispatcher = Dispatcher()
    dispatcher.effect("OrderPlaced", LocalEffect(call))
    async with kafka_bus() as bus, at_work(bus, dispatcher, "orders"):
        await bus.publish(*(placed(number) for number in range(3)))

        async def all_called() -> bool:
            return len(calls) == 3

        await eventually(all_called)
        assert calls == [0, 1, 2]


@pytest.mark.kafka
async def test_a_paused_stream_delivers_nothing(kafka_bus: Open, bus: PostgresBus, courier: Courier) -> None:
    operations = PostgresOperations(bus)
    await operations.pause("orders", reason="test", actor="test")
    await bus.publish(placed(0))

    async def is_sent() -> bool:
        return courier.sent_events == 1

    await eventually(is_sent)
    async with kafka_bus() as consumer:

        async def was_read() -> bool:
            # The claim finds the message, but does not take it.
            assert await consumer.claim("orders", 10, "worker") == []
            return consumer._readers["orders"].has_messages

        await eventually(was_read)
        await operations.resume("orders", actor="test")
        async with at_work(consumer, counting(), "orders"):
            await until_handled(consumer, [0])


@pytest.mark.parametrize("outcome", [Done(), Release()])
async def test_a_wait_ends_at_once_after_a_settlement_that_frees_a_partition(
    kafka_bus: Open, bus: PostgresBus, outcome: Done | Release
) -> None:
    await bus.publish(placed(0), placed(1))
    async with kafka_bus() as owner:
        delivery = await claim_one(owner, limit=1)

        async def second_is_here() -> bool:
            return any(each.messages for each in owner._readers["orders"]._partitions.values())

        await eventually(second_is_here)
        for _ in range(3):
            # Use up the wake-ups that the reader and the claim have caused.
            await owner.wait({"orders"}, timedelta(milliseconds=50))
        async with owner.transaction() as transaction:
            await transaction.settle(delivery, outcome)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await owner.wait({"orders"}, timedelta(hours=1))
        assert await owner.claim("orders", 1, "worker")


@pytest.mark.kafka
async def test_events_that_are_released_are_delivered_again_from_the_topic(kafka_bus: Open) -> None:
    async with kafka_bus() as bus:
        await bus.publish(*(placed(number) for number in range(3)))
        delivery = await claim_one(bus)
        async with bus.transaction() as transaction:
            await transaction.settle_all(
                {each.delivery: Release() for each in bus._batches.find(delivery.same_key).values()}
            )
        async with at_work(bus, counting(), "orders"):
            await until_handled(bus, [0, 1, 2])
        assert await rows(bus, "SELECT id FROM kingdom.outbox_all WHERE stream = 'orders'") == []


@pytest.mark.kafka
async def test_an_event_that_kills_its_workers_moves_to_the_outbox(kafka_bus: Open, bus: PostgresBus) -> None:
    await bus.publish(placed(0))
    async with kafka_bus() as first:
        await claim_one(first)
        await rows(bus, "UPDATE kingdom.inbox_partition SET takeovers = 2")
    async with kafka_bus() as successor:
        delivery = await claim_one(successor)
        # The event is in the outbox, which counts the workers that died while they handled it.
        assert not delivery.in_transport
        assert delivery.envelope.payload == {"number": 0}


def send(brokers: Brokers, topic: str, *values: bytes | None) -> None:
    brokers.create_topics({topic: 1})
    producer = Producer(brokers.client_options())
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0


async def test_messages_of_another_system_become_events_and_malformed_ones_dead_letters(
    kafka_bus: Open, brokers: Brokers
) -> None:
    paid = [json.dumps({"account": "x", "amount": amount}).encode() for amount in (5, 6)]
    # The client takes a message without a value for false, and here it is the first one.
    send(brokers, "bank.payments", None, paid[0], b"\xff no JSON", b"{}", b"", paid[1])
    async with kafka_bus() as bus, at_work(bus, counting(), "payments"):
        await until_handled(bus, [5, 6], "x")
        letters = await PostgresOperations(bus).dead_letters(DeadFilter(stream="payments"), 10)
        assert [(each.type, each.error_code) for each in letters] == [(MALFORMED, "malformed")] * 4
        values = [each.envelope["payload"]["value"] for each in letters]
        assert values == [None, values[1], "{}", ""]
        assert values[1].startswith("base64:")


def paid(**fields: Any) -> bytes:
    """Return a message of another system that has these fields instead of valid ones."""
    return json.dumps({"type": "Paid", "payload": {"number": 1}, "partition_key": "x", **fields}).encode()


def read_fields(message: ForeignMessage) -> Any:
    """Return an event with the fields of a message, whose types it does not check, as applications often do."""
    fields = json.loads(message.value or b"")
    return fields if fields is None else Envelope(**fields)


def retried_once(event: Event[Any]) -> Outcome | None:
    """Let each event move to the outbox before it is done."""
    return Retry(timedelta(milliseconds=10)) if event.attempt == 1 else None


@pytest.mark.kafka
async def test_a_message_whose_event_the_store_cannot_keep_becomes_a_dead_letter(dsn: str, brokers: Brokers) -> None:
    source = ForeignTopic(brokers.topic("foreign"), read_fields)
    payments = Stream(name="payments", ordered=True, transport="kafka", source=source)
    refused = {
        "payload.text cannot be stored: it holds a NUL": paid(payload={"text": "\0"}),
        "payload.text cannot be stored: it holds half a surrogate pair": paid(payload={"text": "\ud800"}),
        "not every store returns nan": paid(payload={"number": float("nan")}),
        "surrogates not allowed": paid(partition_key="\ud800"),
        "a partition_key of stream payments has 2000 bytes at most": paid(partition_key=token_urlsafe(KEY_BYTES_MAX)),
        "got `int` - at `$.partitionKey`": paid(partition_key=42),
        "got `int` - at `$.type`": paid(type=42),
        "got `str` - at `$.schemaVersion`": paid(schema_version="1"),
        "has more than 32 bits": paid(schema_version=2**31),
        "encoded datetime - at `$.occurredAt`": paid(occurred_at="now"),
        "got `array` - at `$.payload`": paid(payload=[1]),
        "returned NoneType, not an Envelope": b"null",
    }
    longest = token_urlsafe(KEY_BYTES_MAX)[:KEY_BYTES_MAX]
    send(brokers, source.name, *refused.values(), paid(partition_key=longest), paid(payload={"number": 2}))
    async with (
        KafkaBus(dsn, Topology([payments]), [COUNTERS], brokers=brokers) as bus,
        at_work(bus, counting(retried_once), "payments"),
    ):
        await until_handled(bus, [1], longest)
        await until_handled(bus, [2], "x")
        letters = await PostgresOperations(bus).dead_letters(DeadFilter(stream="payments"), 100)
    reasons = [
        each.error_message or "" for each in sorted(letters, key=lambda each: each.envelope["payload"]["offset"])
    ]
    assert len(reasons) == len(refused)
    assert [(each, reason) for each, reason in zip(refused, reasons, strict=True) if each not in reason] == []


@pytest.mark.kafka
async def test_a_message_that_another_program_wrote_to_the_topic_of_a_stream_is_checked_too(
    kafka_bus: Open, brokers: Brokers
) -> None:
    unstorable = Envelope(type="OrderPlaced", payload={"text": "\0"}, partition_key="a")
    values = (to_json(each.to_wire()).encode() for each in (unstorable, placed(1)))
    send(brokers, brokers.topic("orders"), *values)
    async with kafka_bus() as bus, at_work(bus, counting(retried_once), "orders"):
        await until_handled(bus, [1])
        (letter,) = await PostgresOperations(bus).dead_letters(DeadFilter(stream="orders"), 10)
        assert "it holds a NUL character" in (letter.error_message or "")
