"""Read topics as a consumer that sees only committed messages, and run couriers up to a number of sent events."""

import json
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.courier import Courier
from kingdom.backends.kafka.topic_writer import TopicWriter
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS


def committed_messages(brokers: Brokers, stream: str) -> list[Message]:
    """Return all committed messages of a topic, partition by partition in their order."""
    topic = brokers.topic(stream)
    partitions = brokers.count_partitions([topic])[topic]
    consumer = Consumer(
        {
            **brokers.client_options(),
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: list[Message] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        if message.error():
            ended.add(message.partition() or 0)
        else:
            found.append(message)
    consumer.close()
    return found


def payloads(brokers: Brokers, stream: str, key: str | None = None) -> list[Any]:
    """Return the payloads of the committed messages of a topic, or of one key."""
    messages = committed_messages(brokers, stream)
    wanted = [each for each in messages if key is None or each.key() == key.encode()]
    return [json.loads(each.value() or b"")["payload"] for each in wanted]


async def send_everything(courier: Courier, events: int) -> None:
    """Wait until a courier has sent this many events."""

    async def sent() -> bool:
        return courier.sent_events >= events

    await eventually(sent)


async def run_until_first_piece(courier: Courier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a courier, and stop it when it has sent one piece of its first tick."""
    send = TopicWriter.send

    def send_and_stop(writer: TopicWriter, *arguments: Any) -> None:
        send(writer, *arguments)
        courier.stop()

    with monkeypatch.context() as patch:
        patch.setattr(TopicWriter, "send", send_and_stop)
        await courier.run()
