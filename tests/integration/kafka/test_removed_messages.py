from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from kingdom.backends.kafka import Brokers, Courier, KafkaBus, topic_reader
from kingdom.backends.kafka.inbox import Inbox
from kingdom.backends.kafka.topic_reader import TopicReader
from kingdom.backends.postgres import PostgresBus
from tests.integration.kafka.counting import Open, counting, numbers, placed, until_handled
from tests.integration.running import at_work, eventually, rows
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("courier")]


@pytest.fixture(autouse=True)
def _idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "_IDLE_SECONDS", 0.0)


async def test_a_worker_continues_after_retention_has_removed_everything_from_an_idle_partition(
    kafka_bus: Open, brokers: Brokers, bus: PostgresBus
) -> None:
    await handle_first(kafka_bus, brokers, bus)
    remove_messages(brokers)
    async with kafka_bus() as successor, at_work(successor, counting(), "orders"):
        await bus.publish(placed(1))
        await until_handled(bus, [0, 1])


async def test_removed_messages_that_were_not_handled_are_an_error(
    kafka_bus: Open, brokers: Brokers, bus: PostgresBus, courier: Courier
) -> None:
    await handle_first(kafka_bus, brokers, bus)
    before = await positions(bus)
    for number in (1, 2):
        await bus.publish(placed(number))
        await until_sent(courier, number + 1)
        if number == 1:
            remove_messages(brokers)
    with capture_logs() as logs:
        async with kafka_bus() as successor, at_work(successor, counting(), "orders"):

            async def is_logged() -> bool:
                return any(each["event"] == "cannot read a partition" for each in logs)

            await eventually(is_logged)
            await until_fetched(successor, 20)
    assert await numbers(bus) == [0]
    assert await positions(bus) == before


async def test_the_end_of_an_idle_partition_is_settled_once(
    kafka_bus: Open, brokers: Brokers, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled, settle = list[Any](), Inbox.settle

    async def settle_and_note(inbox: Inbox, *arguments: Any) -> frozenset[int]:
        settled.append(arguments)
        return await settle(inbox, *arguments)

    monkeypatch.setattr(Inbox, "settle", settle_and_note)
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await bus.publish(placed(0))
        await until_handled(bus, [0])
        await until_at_end(brokers, bus)
        await until_fetched(owner, 20)
    assert len(settled) == 1


@pytest.mark.parametrize("limit", [0, 10])
async def test_messages_that_wait_or_that_a_worker_has_are_not_settled_with_the_end_of_their_partition(
    kafka_bus: Open, bus: PostgresBus, limit: int
) -> None:
    await bus.publish(placed(0))
    async with kafka_bus() as owner:

        async def is_at_end() -> bool:
            await owner.claim("orders", limit, "worker")
            found = owner._readers["orders"]._partitions.values()
            return any(each.end and (each.open if limit else each.messages) for each in found)

        await eventually(is_at_end)
        await until_fetched(owner, 3)
        assert set((await positions(bus)).values()) == {0}
    async with kafka_bus() as successor, at_work(successor, counting(), "orders"):
        await until_handled(bus, [0])


async def test_the_end_of_a_partition_that_is_taken_again_is_settled(
    kafka_bus: Open, brokers: Brokers, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, dropped = TopicReader._receive, list[Message]()

    def fail_once(reader: TopicReader, messages: Sequence[Message]) -> None:
        ends = [each for each in messages if each.error() and (each.offset() or 0) > 0]
        if ends and not dropped:
            dropped.extend(ends)
            raise RuntimeError("a callback has failed")
        receive(reader, messages)

    monkeypatch.setattr(TopicReader, "_receive", fail_once)
    await handle_first(kafka_bus, brokers, bus)
    assert dropped


async def handle_first(kafka_bus: Open, brokers: Brokers, bus: PostgresBus) -> None:
    """Publish and handle one event, and wait until its partition is settled up to its end."""
    async with kafka_bus() as owner, at_work(owner, counting(), "orders"):
        await bus.publish(placed(0))
        await until_handled(bus, [0])
        await until_at_end(brokers, bus)


async def until_at_end(brokers: Brokers, bus: PostgresBus) -> None:
    async def is_at_end() -> bool:
        found = ends(brokers)
        return any(found.values()) and await positions(bus) == found

    await eventually(is_at_end)


async def until_sent(courier: Courier, count: int) -> None:
    async def is_sent() -> bool:
        return courier.sent_events >= count

    await eventually(is_sent)


async def until_fetched(bus: KafkaBus, times: int) -> None:
    """Wait until the reader of a bus has looked for messages some more times."""
    reader, looks = bus._readers["orders"], list[int]()
    settle_ends = reader._settle_ends

    def note() -> None:
        settle_ends()
        looks.append(1)

    async def has_looked() -> bool:
        return len(looks) >= times

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_settle_ends", note)
        await eventually(has_looked)


async def positions(bus: PostgresBus) -> dict[int, int]:
    """Return the first offset of each partition that is not settled."""
    found = await rows(bus, "SELECT partition, upper(handled) AS position FROM kingdom.inbox_partition")
    return {row["partition"]: row["position"] for row in found}


def ends(brokers: Brokers) -> dict[int, int]:
    consumer = Consumer({**brokers.client_options(), "group.id": "reader"})
    found = {each.partition: consumer.get_watermark_offsets(each)[1] for each in partitions(brokers)}
    consumer.close()
    return found


def remove_messages(brokers: Brokers) -> None:
    """Remove everything from the topic, as retention does."""
    admin = AdminClient(brokers.client_options())
    for future in admin.delete_records(partitions(brokers)).values():
        future.result(PATIENCE_SECONDS)


def partitions(brokers: Brokers) -> list[TopicPartition]:
    return [TopicPartition(brokers.topic("orders"), number, OFFSET_END) for number in range(brokers.partitions)]
