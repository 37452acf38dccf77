"""Run every contract test on each registered backend.

After the test, check the invariants of the store, and that unrelated events (the bystanders) did not change.
"""

import itertools
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from bench.kafka.broker import PrivateKafka
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.contract.bystanders import part_with, put_bystanders
from tests.contract.kafka_backend import KafkaBackend, runs_on_kafka
from tests.contract.scene import KINDS, TOPOLOGY, Scene

_numbers = itertools.count()
_BACKENDS: dict[str, type[BackendUnderTest]] = {**BACKENDS, KafkaBackend.name: KafkaBackend}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests on Kafka, and remove those that do not hold there."""
    on_kafka = [item for item in items if _backend_of(item) == KafkaBackend.name]
    for item in on_kafka:
        item.add_marker("kafka")
    excluded = {item for item in on_kafka if not runs_on_kafka(item)}
    items[:] = [item for item in items if item not in excluded]


def _backend_of(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("backend") if callspec else None


@pytest.fixture
def kafka_place(dsn: str, broker: PrivateKafka) -> str:
    """A store and topics of its own, as text."""
    return json.dumps([dsn, broker.servers, f"contract{next(_numbers)}."])


@pytest.fixture(params=_BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    """Each registered backend, on an empty store."""
    kind = _BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(kind.place_fixture)))
    yield backend
    backend.close()


@pytest.fixture
async def scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with backend.open(TOPOLOGY, KINDS) as bus:
        bystanders = await put_bystanders(bus) if backend.has_bystanders else frozenset()
        scene = Scene(backend, bus, backend.operations(bus), bystanders)
        before = part_with(backend.picture(), scene.bystanders)
        yield scene
        scene.check()
        assert part_with(backend.picture(), scene.bystanders) == before
