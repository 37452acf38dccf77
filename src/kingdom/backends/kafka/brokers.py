"""The addresses of the brokers, and the names of the topics of a store."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kingdom.errors import Misconfigured, Unavailable

# The broker chooses the replication factor of a new topic.
_REPLICATION_OF_BROKER = -1
_ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The addresses of a Kafka cluster. `prefix` starts the names of all topics and groups of one store.

    `options` go to every client, for example to encrypt its connections. A new topic has `partitions` partitions.
    """

    servers: str
    prefix: str
    partitions: int = 12
    options: Mapping[str, str] = field(default_factory=dict)

    def topic(self, stream: str) -> str:
        """Return the topic of a stream."""
        return f"{self.prefix}{stream}"

    def client_options(self) -> dict[str, str | int | float | bool]:
        """Return the options of every client."""
        return {"bootstrap.servers": self.servers, "log_level": 0, **self.options}

    def create_topics(self, partitions: Mapping[str, int]) -> None:
        """Create the topics that do not exist. `partitions` has the number of partitions of each."""
        admin = AdminClient(self.client_options())
        topics = [
            NewTopic(topic, num_partitions=count, replication_factor=_REPLICATION_OF_BROKER)
            for topic, count in partitions.items()
        ]
        with kafka_errors():
            for future in admin.create_topics(topics, request_timeout=_ANSWER_SECONDS).values():
                try:
                    future.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

    def count(self) -> int:
        """Return how many brokers the cluster has."""
        with kafka_errors():
            return len(AdminClient(self.client_options()).list_topics(timeout=_LOOK_SECONDS).brokers)

    def count_partitions(self, topics: list[str]) -> dict[str, int]:
        """Return how many partitions each of the existing topics has."""
        with kafka_errors():
            known = AdminClient(self.client_options()).list_topics(timeout=_ANSWER_SECONDS).topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key. It stays the same for as long as the number of partitions does."""
    return crc32(key.encode()) % partitions


def read_headers(message: Message) -> dict[str, bytes]:
    """Return the headers of a message. Of several with the same name, the last one counts."""
    headers = message.headers() or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {str(name): value if isinstance(value, bytes) else str(value or "").encode() for name, value in pairs}


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raise errors of the bus instead of errors of the client."""
    try:
        yield
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        if cause.code() in _REFUSALS:
            raise Misconfigured(f"Kafka refuses this client: {cause.str()}; check KINGDOM_KAFKA_OPTIONS") from error
        raise Unavailable(f"Kafka does not answer: {cause.str()}") from error


_REFUSALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
