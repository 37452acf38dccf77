"""How the writer to the topics reports fatal errors of its client."""

from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException

from kingdom.backends.kafka import topic_writer
from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.topic_writer import CourierFenced, TopicWriter
from kingdom.errors import KingdomError, Unavailable


class BrokenProducer:
    """A producer whose client has failed for ever."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code, "it broke", True))  # noqa: FBT003 - the driver knows no keyword

    def init_transactions(self, _seconds: float) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (KafkaError._FENCED, CourierFenced, "another courier has taken over: it broke"),
        (KafkaError.PRODUCER_FENCED, CourierFenced, "another courier has taken over: it broke"),
        (KafkaError.INVALID_PRODUCER_EPOCH, CourierFenced, "another courier has taken over: it broke"),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Unavailable, "Kafka does not answer: it broke"),
    ],
)
def test_only_a_fenced_writer_says_that_another_courier_has_taken_over(
    code: int, error: type[KingdomError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_writer, "Consumer", dict)
    monkeypatch.setattr(topic_writer, "Producer", lambda _options: BrokenProducer(code))
    writer = TopicWriter(Brokers(servers="localhost:1", prefix="test."), uuid4(), {})
    with pytest.raises(error, match=message) as raised:
        writer.open()
    assert type(raised.value) is error
