"""Write events to topics: each piece in one Kafka transaction, together with the position up to which all is sent."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kingdom.backends.kafka.brokers import Brokers, kafka_errors, partition_of
from kingdom.backends.kafka.courier_queue import CarriedEvent
from kingdom.backends.kafka.messages import add_not_before
from kingdom.errors import KingdomError, Misconfigured, Unavailable

# A successor ends the open transaction of a dead courier at once, so this limit matters only if no successor starts.
_TRANSACTION_MILLISECONDS = 60_000
_ANSWER_SECONDS = 30.0
# With the default of 100 ms, each transaction would take that long.
_RETRY_MILLISECONDS = 5
_CLOSED_SECONDS = 5.0
# The client also has fatal errors of other causes, such as a lost message.
_FENCING = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class CourierFenced(KingdomError):
    """Raised when another courier has taken over."""

    code = "fenced"


@dataclass(frozen=True, slots=True)
class SentPosition:
    """Everything is sent up to this event of this tick. If `seq` is None, the whole tick is sent."""

    tick: int
    seq: int | None = None


class TopicWriter:
    """The only writer to the topics of a store. Opening it aborts and fences an earlier writer.

    `partitions` has the number of partitions of each topic. Calls block, so the courier makes them in another thread.
    After an error, open a new writer.
    """

    def __init__(self, brokers: Brokers, store: UUID, partitions: dict[str, int]) -> None:
        self._brokers = brokers
        self._store = store
        self.partitions = partitions
        # The position is an offset of this topic, which has no messages.
        self._cursor_topic = name = cursor_topic(brokers)
        options = brokers.client_options()
        self._reader = Consumer(
            {**options, "group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        self._producer = Producer(
            {
                **options,
                "transactional.id": name,
                "transaction.timeout.ms": _TRANSACTION_MILLISECONDS,
                "retry.backoff.ms": _RETRY_MILLISECONDS,
                "linger.ms": 1,
            }
        )

    def open(self) -> SentPosition:
        """Fence earlier writers, and return up to where they have sent."""
        with _writer_errors():
            self._producer.init_transactions(_ANSWER_SECONDS)
            # This comes after the fence, so no earlier writer can change it any more.
            (found,) = self._reader.committed([TopicPartition(self._cursor_topic, 0)], timeout=_ANSWER_SECONDS)
        if found.offset == OFFSET_INVALID:
            return SentPosition(0)
        store, _, seq = (found.metadata or "").partition("/")
        if store != str(self._store):
            raise Misconfigured(
                f"the topics {self._brokers.prefix}* belong to the store {store}, but this store is {self._store}:"
                " set KINGDOM_KAFKA_PREFIX to another prefix"
            )
        return SentPosition(found.offset, int(seq) if seq else None)

    def send(self, tick: int, events: Sequence[CarriedEvent], reached: SentPosition) -> None:
        """Send events of a tick together with the position that they reach, all or nothing."""
        with _writer_errors():
            self._producer.begin_transaction()
            for event in events:
                self._produce(tick, event)
            offset = TopicPartition(
                self._cursor_topic, 0, reached.tick, f"{self._store}/{'' if reached.seq is None else reached.seq}"
            )
            self._producer.send_offsets_to_transaction(
                [offset], self._reader.consumer_group_metadata(), _ANSWER_SECONDS
            )
        self._commit()

    def _commit(self) -> None:
        with _writer_errors():
            # The commit sends what is still in the queue of the client, and fails if one event cannot be sent.
            self._producer.commit_transaction(_ANSWER_SECONDS)

    def close(self) -> None:
        """Close all connections, and drop what is not sent."""
        # A writer that is fenced raises the same error again.
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(_CLOSED_SECONDS)
        self._reader.close()
        # The end of a client waits for its threads, so it must not happen in the event loop.
        del self._producer, self._reader

    def _produce(self, tick: int, event: CarriedEvent) -> None:
        topic = self._brokers.topic(event.stream)
        value, key = event.value, event.partition_key
        if event.not_before is not None:
            value = add_not_before(value, event.not_before)
        partition = partition_of(str(event.event_id) if key is None else key, self.partitions[topic])
        while True:
            try:
                self._producer.produce(
                    topic,
                    value.encode(),
                    None if key is None else key.encode(),
                    partition,
                    timestamp=int(event.created_at.timestamp() * 1000),
                    headers=_headers(self._store, tick, event),
                )
            except BufferError:
                # The queue of the client is full.
                self._producer.poll(1)
            else:
                return


def cursor_topic(brokers: Brokers) -> str:
    """Return the name of the topic, group and transactional id of the courier."""
    return f"{brokers.prefix}_courier"


def _headers(store: UUID, tick: int, event: CarriedEvent) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of an event: ours, and those of the CloudEvents binding for Kafka."""
    texts = {
        "eventId": str(event.event_id),
        "type": event.event_type,
        "schemaVersion": str(event.schema_version),
        "traceId": event.trace_id,
        "position": f"{tick}.{event.seq}",
        "ce_specversion": "1.0",
        "ce_id": str(event.event_id),
        "ce_type": event.event_type,
        "ce_source": f"/kingdom/{store}/{event.stream}",
        "ce_time": event.created_at.isoformat(),
        "content-type": "application/json",
    }
    if event.not_before is not None:
        texts["notBefore"] = event.not_before.isoformat()
    return [(name, text.encode()) for name, text in texts.items()]


@contextmanager
def _writer_errors() -> Iterator[None]:
    """Raise errors of the bus, and CourierFenced if the brokers accept only a later writer."""
    try:
        with kafka_errors():
            yield
    except Unavailable as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].fatal() and cause.args[0].code() in _FENCING:
            raise CourierFenced(f"another courier has taken over: {cause.args[0].str()}") from error
        raise
