import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from kingdom.backends.kafka import KafkaBus, topic_reader
from kingdom.backends.kafka.inbox import Inbox
from kingdom.backends.kafka.topic_reader import TopicReader
from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres.connection import Call, Connection, Rows
from kingdom.bus import Done
from kingdom.bus.outcome import Release
from kingdom.errors import LeaseLost
from tests.integration.kafka.counting import (
    Open,
    append_and_settle,
    claim_one,
    counting,
    numbers,
    placed,
    until_handled,
)
from tests.integration.running import at_work, eventually, rows
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("courier")


async def test_an_earlier_owner_of_a_partition_cannot_settle_events(kafka_bus: Open, bus: PostgresBus) -> None:
    await bus.publish(placed(0))
    async with kafka_bus() as zombie, kafka_bus() as successor:
        delivery = await claim_one(zombie)
        await rows(bus, "UPDATE kingdom.inbox_partition SET epoch = epoch + 1")
        async with zombie.transaction(hold=[delivery]) as transaction:
            assert transaction.held == ()
        with pytest.raises(LeaseLost):
            await append_and_settle(zombie, delivery)
        assert await numbers(successor) == []


async def test_an_owner_takes_its_partition_back_from_a_delayed_process(kafka_bus: Open, bus: PostgresBus) -> None:
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await bus.publish(placed(0))
        await until_handled(owner, [0])
        # A process that was suspended while it took the partition continues, after another process has replaced it.
        await rows(bus, "UPDATE kingdom.inbox_partition SET epoch = epoch + 1")
        await bus.publish(*(placed(number) for number in range(1, 5)))
        await until_handled(owner, list(range(5)))


@pytest.mark.kafka
async def test_messages_that_a_failed_client_call_drops_are_read_again(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, dropped = TopicReader._receive, list[Message]()

    def fail_once(reader: TopicReader, messages: Sequence[Message]) -> None:
        if messages and not dropped:
            dropped.extend(messages)
            raise RuntimeError("a callback has failed")
        receive(reader, messages)

    monkeypatch.setattr(TopicReader, "_receive", fail_once)
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await bus.publish(placed(0))

        async def have_been_dropped() -> bool:
            return bool(dropped)

        await eventually(have_been_dropped)
        await bus.publish(placed(1))
        await until_handled(owner, [0, 1])


@pytest.mark.kafka
async def test_a_backlog_is_read_without_pauses_while_a_worker_makes_room(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    class CountingConsumer(Consumer):
        def pause(self, partitions: list[TopicPartition]) -> None:
            pauses.append(len(partitions))
            super().pause(partitions)

    monkeypatch.setattr(topic_reader, "Consumer", CountingConsumer)
    make_buffer_small(monkeypatch, room_seconds=PATIENCE_SECONDS)
    await bus.publish(*(placed(number) for number in range(200)))
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await until_handled(owner, list(range(200)))
    assert pauses == []


@pytest.mark.kafka
@pytest.mark.parametrize("limit", ["_BUFFERED", "_BUFFERED_BYTES"])
async def test_reading_pauses_while_the_buffer_is_full_and_continues_afterward(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    make_buffer_small(monkeypatch)
    if limit == "_BUFFERED_BYTES":
        monkeypatch.setattr(topic_reader, "_BUFFERED", 10_000)
        monkeypatch.setattr(topic_reader, "_BUFFERED_BYTES", 2_000)
    await bus.publish(*(placed(number) for number in range(200)))
    async with kafka_bus() as owner:
        # A claim opens the reader; nothing else takes what it has read.
        delivery = await claim_one(owner, limit=1)
        (reader,) = owner._readers.values()

        async def is_paused() -> bool:
            return reader._paused

        await eventually(is_paused)
        assert sum(len(each.messages) for each in reader._partitions.values()) < 50
        async with owner.transaction() as transaction:
            await transaction.settle(delivery, Release())
        async with at_work(owner, counting(), "orders"):
            await until_handled(owner, list(range(200)))


@pytest.mark.kafka
async def test_partitions_that_a_process_gets_while_reading_pauses_are_paused_too(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_buffer_small(monkeypatch)
    fetches, fetch = Counter[TopicReader](), TopicReader._fetch

    def fetch_and_count(reader: TopicReader) -> list[Message]:
        fetches[reader] += 1
        return fetch(reader)

    monkeypatch.setattr(TopicReader, "_fetch", fetch_and_count)
    async with kafka_bus() as owner:
        async with kafka_bus() as leaving:
            await open_reader(leaving)
            reader = await open_reader(owner)
            for each in (leaving, owner):
                await until_it_owns(each, 2)
            await bus.publish(*(placed(number, key) for number in range(100) for key in "abcdefgh"))

            async def is_paused() -> bool:
                return reader._paused

            await eventually(is_paused)
        await until_it_owns(owner, 4)
        fetches.clear()

        async def would_have_fetched() -> bool:
            return fetches[reader] >= 200

        await eventually(would_have_fetched)
        assert sum(len(each.messages) for each in reader._partitions.values()) < 50


@pytest.mark.kafka
async def test_a_partition_that_was_taken_away_while_reading_pauses_is_read_when_it_comes_back(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_buffer_small(monkeypatch)
    await bus.publish(*(placed(number, key) for number in range(50) for key in "abcdefgh"))
    async with kafka_bus() as owner:
        reader = await open_reader(owner)

        async def is_paused() -> bool:
            return reader._paused

        async def reads_again() -> bool:
            return not reader._paused

        await eventually(is_paused)
        async with kafka_bus() as passing:
            await open_reader(passing)
            await until_it_owns(owner, 2)
            # There is room from now on, so nothing pauses again.
            monkeypatch.setattr(topic_reader, "_BUFFERED", 10_000)
            await eventually(reads_again)
        await until_it_owns(owner, 4)
        async with at_work(owner, counting(), "orders"):
            for key in "abcdefgh":
                await until_handled(owner, list(range(50)), key)


@pytest.mark.kafka
@pytest.mark.parametrize(("kind", "step"), [(Inbox, "take_partition"), (TopicReader, "_receive")])
async def test_a_reader_goes_on_after_an_unexpected_error(
    kind: type, step: str, kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step, errors = getattr(kind, step), [ValueError("a damaged index")]

    def fail_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return take_step(*arguments)

    monkeypatch.setattr(kind, step, fail_once)
    monkeypatch.setattr(topic_reader, "_PAUSE_SECONDS", 0.01)
    await bus.publish(*(placed(0, key) for key in "abcdefgh"))
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        for key in "abcdefgh":
            await until_handled(owner, [0], key)
    assert errors == []


# The clock of the lost server was right, or ten days fast.
@pytest.mark.parametrize("lead", [0, 10**12])
async def test_the_epoch_of_an_owner_that_a_failover_has_lost_is_not_used_again(bus: PostgresBus, lead: int) -> None:
    inbox = Inbox(bus, "orders")
    earlier = (await inbox.take_partition("orders", 0, 0)).epoch + lead
    await rows(bus, "UPDATE kingdom.inbox_partition SET epoch = %s", earlier)
    lost = await inbox.take_partition("orders", 0, 0)
    await rows(bus, "UPDATE kingdom.inbox_partition SET epoch = %s", earlier)
    again = await inbox.take_partition("orders", 0, 0)
    assert again.epoch != lost.epoch
    assert min(again.epoch, lost.epoch) > earlier


@pytest.mark.kafka
async def test_reading_continues_although_the_client_fails_to_resume_at_first(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[KafkaException] = []

    class FailingConsumer(Consumer):
        def resume(self, partitions: list[TopicPartition]) -> None:
            if not failures:
                failures.append(KafkaException("not now"))
                raise failures[0]
            super().resume(partitions)

    monkeypatch.setattr(topic_reader, "Consumer", FailingConsumer)
    make_buffer_small(monkeypatch)
    monkeypatch.setattr(topic_reader, "_PAUSE_SECONDS", 0.01)
    await bus.publish(*(placed(number) for number in range(200)))
    async with kafka_bus() as owner:
        reader = await open_reader(owner)

        async def is_paused() -> bool:
            return reader._paused

        await eventually(is_paused)
        async with at_work(owner, counting(), "orders"):
            await until_handled(owner, list(range(200)))
    assert failures


def make_buffer_small(monkeypatch: pytest.MonkeyPatch, *, room_seconds: float = 0.01) -> None:
    monkeypatch.setattr(topic_reader, "_BUFFERED", 20)
    monkeypatch.setattr(topic_reader, "_FETCHED_AT_ONCE", 10)
    monkeypatch.setattr(topic_reader, "_ROOM_SECONDS", room_seconds)


async def open_reader(bus: KafkaBus) -> TopicReader:
    # A claim opens the reader. With a limit of zero it takes no messages.
    await bus.claim("orders", 0, "worker")
    (reader,) = bus._readers.values()
    return reader


async def until_it_owns(bus: KafkaBus, partitions: int) -> None:
    (reader,) = bus._readers.values()

    async def owns() -> bool:
        return len(reader._partitions) == partitions

    await eventually(owns)


@pytest.mark.kafka
async def test_a_bus_closes_in_time_though_its_reader_does_not_end(
    kafka_bus: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, is_reading = threading.Event(), threading.Event()

    def hang(_reader: TopicReader) -> None:
        is_reading.set()
        goes_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(TopicReader, "_limit_buffer", hang)
    monkeypatch.setattr(topic_reader, "CLOSED_SECONDS", 0.1)
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        async with kafka_bus() as bus:
            await bus.claim("orders", 10, "worker")
            await asyncio.to_thread(is_reading.wait)
    goes_on.set()


async def test_a_partition_is_checked_before_the_changes_of_its_events_are_written(
    kafka_bus: Open, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.publish(placed(0))
    names, statements, run = {sql: name for name, sql in bus.queries.items()}, list[str](), Connection.run
    test = asyncio.current_task()

    async def run_and_note(connection: Connection, *calls: Call) -> list[Rows]:
        # The courier runs statements at the same time.
        if asyncio.current_task() is test:
            statements.extend(name for sql, _ in calls if (name := names.get(sql)))
        return await run(connection, *calls)

    async with kafka_bus() as owner:
        delivery = await claim_one(owner)
        monkeypatch.setattr(Connection, "run", run_and_note)
        await append_and_settle(owner, delivery)
    # An event of a topic has no lease, so the statements cannot check one.
    assert statements == ["get_record", "begin", "settle_partitions", "insert_record"]


@pytest.mark.kafka
async def test_an_offset_that_is_handled_is_not_handled_again(kafka_bus: Open, bus: PostgresBus) -> None:
    await bus.publish(placed(0))
    async with kafka_bus() as owner:
        delivery = await claim_one(owner)
        # As if another transaction of the same owner had settled it.
        await rows(
            bus, "UPDATE kingdom.inbox_partition SET handled = handled + int8multirange(int8range(NULL, 1000000))"
        )
        with pytest.raises(LeaseLost):
            await append_and_settle(owner, delivery)
        assert await numbers(owner) == []


async def test_the_offset_does_not_move_without_the_changes_of_its_transaction(
    kafka_bus: Open, bus: PostgresBus
) -> None:
    await bus.publish(placed(0))
    before = "SELECT handled::text AS handled FROM kingdom.inbox_partition ORDER BY partition"
    async with kafka_bus() as owner:
        delivery = await claim_one(owner)
        offsets = await rows(bus, before)
        with pytest.raises(RuntimeError, match="crash"):
            await settle_and_crash(owner, delivery)
        assert await rows(bus, before) == offsets
        async with owner.transaction() as transaction:
            await transaction.settle(delivery, Done())
        assert await rows(bus, before) != offsets


async def settle_and_crash(bus: KafkaBus, delivery: Any) -> None:
    async with bus.transaction(hold=[delivery]) as transaction:
        await transaction.settle(delivery, Done())
        raise RuntimeError("crash")


@pytest.mark.kafka
@pytest.mark.parametrize("found_by", ["a later event", "a repair"])
async def test_events_whose_settlements_a_failover_has_lost_are_handled_again_before_later_ones(
    kafka_bus: Open, bus: PostgresBus, found_by: str
) -> None:
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await publish_and_handle(owner, range(3))
        # What a standby has, and what remains of the records and offsets after it has become the primary.
        await rows(bus, "CREATE TABLE standby_record AS SELECT id, version, doc FROM kingdom.record")
        await rows(bus, "CREATE TABLE standby_inbox AS SELECT partition, handled FROM kingdom.inbox_partition")
        await publish_and_handle(owner, range(3, 6))
        await rows(
            bus,
            "WITH r AS (UPDATE kingdom.record r SET version = s.version, doc = s.doc FROM standby_record s"
            " WHERE s.id = r.id)"
            " UPDATE kingdom.inbox_partition p SET handled = s.handled FROM standby_inbox s"
            " WHERE s.partition = p.partition",
        )
        if found_by == "a repair":
            owner._next_full_reap = 0.0
            await owner.reap()
            await until_all_handled(owner, 6)
        await publish_and_handle(owner, range(6, 9))


async def publish_and_handle(bus: PostgresBus, numbers_of_keys: range) -> None:
    await bus.publish(*(placed(number, key) for number in numbers_of_keys for key in "abc"))
    await until_all_handled(bus, numbers_of_keys.stop)


async def until_all_handled(bus: PostgresBus, count: int) -> None:
    for key in "abc":
        await until_handled(bus, list(range(count)), key)


async def test_a_settlement_is_refused_if_the_server_has_lost_an_earlier_one_of_its_partition(
    kafka_bus: Open, bus: PostgresBus
) -> None:
    await bus.publish(placed(0), placed(1))
    async with kafka_bus() as owner:
        await append_and_settle(owner, await claim_one(owner, limit=1))
        delivery = await claim_one(owner, limit=1)
        await rows(bus, "UPDATE kingdom.inbox_partition SET handled = int8multirange(int8range(NULL, 0))")
        with pytest.raises(LeaseLost):
            await append_and_settle(owner, delivery)
        assert await numbers(owner) == [0]
        again = await claim_one(owner, limit=1)
        assert again.envelope.payload == {"number": 0}
