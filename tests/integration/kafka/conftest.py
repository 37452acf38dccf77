"""Fixtures: a bus, its courier and its consumers, with topics of its own for each test."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import pytest_asyncio

from bench.kafka.broker import PrivateKafka
from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import (
    EFFECTS,
    Envelope,
    ForeignMessage,
    ForeignTopic,
    RecordKind,
    RetryPolicy,
    Stream,
    Topology,
)


def read_payment(message: ForeignMessage) -> Envelope:
    """Return the event of a message of another system."""
    content = json.loads(message.value or b"")
    return Envelope(type="Paid", payload={"number": content["amount"]}, partition_key=content["account"])


_numbers = itertools.count()
_RETRY = RetryPolicy(base=timedelta(milliseconds=10), cap=timedelta(milliseconds=20), max_attempts=3)
# What a handler has seen: a list of numbers per key.
COUNTERS = RecordKind(name="counter", directories={"open": "counters"})
TOPOLOGY = Topology(
    [
        Stream(name="orders", ordered=True, transport="kafka", subscribes=frozenset({"OrderPlaced"}), retry=_RETRY),
        Stream(name="audit", subscribes=frozenset({"OrderPlaced"})),
        Stream(
            name="payments",
            ordered=True,
            transport="kafka",
            source=ForeignTopic("bank.payments", read_payment),
            retry=_RETRY,
        ),
    ]
)


@pytest.fixture
def brokers(broker: PrivateKafka) -> Brokers:
    """The address of the broker, with a prefix that gives each test its own topics."""
    return Brokers(servers=broker.servers, prefix=f"test{next(_numbers)}.", partitions=4)


@pytest_asyncio.fixture
async def bus(dsn: str) -> AsyncIterator[PostgresBus]:
    """A bus with a stream on Kafka, and one in the store."""
    async with PostgresBus(dsn, TOPOLOGY, [COUNTERS, EFFECTS]) as bus:
        yield bus


@pytest.fixture
def kafka_bus(dsn: str, brokers: Brokers) -> Callable[[], KafkaBus]:
    """Open one more bus that also delivers from topics, as another process would."""
    return lambda: KafkaBus(dsn, TOPOLOGY, [COUNTERS, EFFECTS], brokers=brokers)


@pytest_asyncio.fixture
async def courier(bus: PostgresBus, brokers: Brokers) -> AsyncIterator[Courier]:
    """A running courier."""
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    yield courier
    courier.stop()
    await running
