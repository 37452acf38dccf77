"""A store for one verification whose events may also be in topics."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from kingdom.backends.kafka.brokers import Brokers, kafka_errors, read_headers
from kingdom.backends.postgres.trial_store import PostgresTrialStore
from kingdom.errors import Unavailable
from kingdom.trial_store import StoredEvent

# The positions of events in topics are above those of the outbox, and those of unsent events are above both.
_FIRST_IN_TOPIC = 1 << 40
_FIRST_UNSENT = 1 << 50
_READ_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
# The ranges of handled offsets by topic and partition.
_Handled = Mapping[tuple[str, int], Sequence[tuple[int, int]]]


class KafkaTrialStore(PostgresTrialStore):
    """A schema and the topics of its courier.

    An event of a topic is finished when its handler has written a log entry of the type `applied`, or when it has ended
    in the outbox. It is DONE if its offset is handled. No token is stored for it.
    """

    def __init__(self, dsn: str, schema: str, brokers: Brokers, applied: str) -> None:
        super().__init__(dsn, schema)
        self._brokers = brokers
        self._applied = applied

    async def drop(self) -> None:
        """See `TrialStore.drop`; the topics are removed too."""
        await asyncio.to_thread(self._delete_topics)
        await super().drop()

    async def unfinished(self) -> int:
        """See `TrialStore.unfinished`."""
        return int((await self._read("count_unfinished_carried", applied=self._applied))[0]["events"])

    async def events(self) -> list[StoredEvent]:
        """See `TrialStore.events`. The position of an event that a courier has sent is its place in the topics."""
        in_outbox = {(event.stream, event.event_id): event for event in await super().events()}
        topics = [row["topic"] for row in await self._read("carried_topics")]
        messages = await asyncio.to_thread(self._read_topics, topics)
        handled = {
            (row["topic"], row["partition"]): list(zip(row["starts"], row["ends"], strict=True))
            for row in await self._read("handled_offsets")
        }
        sent = list(self._events_in_topics(messages, handled, in_outbox))
        known = in_outbox.keys() | {(event.stream, event.event_id) for event in sent}
        unsent = [
            _pending(row["stream"], row["event_id"], row["partition_key"], _FIRST_UNSENT + row["seq"])
            for row in await self._read("unsent_events")
            if (row["stream"], row["event_id"]) not in known
        ]
        return [*in_outbox.values(), *sent, *unsent]

    def _events_in_topics(
        self, messages: Sequence[Message], handled: _Handled, in_outbox: dict[tuple[str, str], StoredEvent]
    ) -> Iterator[StoredEvent]:
        """Yield the event of each message. An event that the outbox has too leaves `in_outbox`."""
        for position, message in enumerate(messages, _FIRST_IN_TOPIC):
            topic, event_id = message.topic() or "", read_headers(message)["eventId"].decode()
            stream, key = topic.removeprefix(self._brokers.prefix), message.key()
            if stored := in_outbox.pop((stream, event_id), None):
                yield replace(stored, position=position)
                continue
            event = _pending(stream, event_id, key.decode() if isinstance(key, bytes) else key, position)
            ranges, offset = handled.get((topic, message.partition() or 0), ()), message.offset() or 0
            yield replace(event, status="DONE") if any(start <= offset < end for start, end in ranges) else event

    def _read_topics(self, topics: list[str]) -> list[Message]:
        """Return all committed messages, by topic, partition and offset."""
        counts = self._brokers.count_partitions(topics)
        places = [
            TopicPartition(topic, number, OFFSET_BEGINNING) for topic in counts for number in range(counts[topic])
        ]
        consumer = Consumer(
            {
                **self._brokers.client_options(),
                "group.id": f"{self._brokers.prefix}_trial",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign(places)
            found = list(_read_to_end(consumer, len(places)))
        finally:
            consumer.close()
        return sorted(found, key=lambda each: (each.topic() or "", each.partition() or 0, each.offset() or 0))

    def _delete_topics(self) -> None:
        # The brokers may have ended already.
        with contextlib.suppress(Unavailable, KafkaException), kafka_errors():
            admin = AdminClient(self._brokers.client_options())
            topics = admin.list_topics(timeout=_ANSWER_SECONDS).topics
            if mine := [topic for topic in topics if topic.startswith(self._brokers.prefix)]:
                for deletion in admin.delete_topics(mine, operation_timeout=_ANSWER_SECONDS).values():
                    deletion.result()


def _read_to_end(consumer: Consumer, partitions: int) -> Iterator[Message]:
    ended, deadline = set[tuple[str | None, int | None]](), time.monotonic() + _READ_SECONDS
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise Unavailable(f"the brokers have not given {partitions - len(ended)} partitions to their end")
        message = consumer.poll(1.0)
        if message is None:
            continue
        problem = message.error()
        if problem is None:
            deadline = time.monotonic() + _READ_SECONDS
            yield message
        elif problem.code() == KafkaError._PARTITION_EOF:
            ended.add((message.topic(), message.partition()))


def _pending(stream: str, event_id: str, key: str | None, position: int) -> StoredEvent:
    return StoredEvent(
        event_id=event_id,
        stream=stream,
        partition_key=key,
        position=position,
        status="PENDING",
        token=None,
        error_code=None,
    )
