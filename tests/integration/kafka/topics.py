"""Read topics as a consumer that sees only committed messages."""

import json
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from kingdom.backends.kafka.brokers import Brokers
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
