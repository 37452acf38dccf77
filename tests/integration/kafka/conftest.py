"""Fixtures: one private Kafka broker per test process, and topics of its own for each test."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from bench.kafka.broker import PrivateKafka
from kingdom.backends.kafka import Brokers, Courier
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Stream, Topology

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[PrivateKafka]:
    """One broker for all tests that neither kill nor restart it."""
    with PrivateKafka() as broker:
        yield broker


@pytest.fixture
def brokers(broker: PrivateKafka) -> Brokers:
    """The address of the broker, with topics of its own for each test."""
    return Brokers(servers=broker.servers, prefix=f"test{next(_numbers)}.", partitions=4)


@pytest_asyncio.fixture
async def bus(dsn: str) -> AsyncIterator[PostgresBus]:
    """A bus with a stream on Kafka, and one in the store."""
    topology = Topology(
        [
            Stream(name="orders", ordered=True, transport="kafka", subscribes=frozenset({"OrderPlaced"})),
            Stream(name="audit", subscribes=frozenset({"OrderPlaced"})),
        ]
    )
    async with PostgresBus(dsn, topology) as bus:
        yield bus


@pytest_asyncio.fixture
async def courier(bus: PostgresBus, brokers: Brokers) -> AsyncIterator[Courier]:
    """A running courier."""
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    yield courier
    courier.stop()
    await running
