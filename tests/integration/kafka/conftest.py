"""Fixtures: one private Kafka broker per test process."""

from collections.abc import Iterator

import pytest

from bench.kafka.broker import PrivateKafka


@pytest.fixture(scope="session")
def broker() -> Iterator[PrivateKafka]:
    """One broker for all tests that neither kill nor restart it."""
    with PrivateKafka() as broker:
        yield broker
