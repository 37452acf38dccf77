"""Every contract test runs once per registered backend, and every store must be sound when its test ends."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.contract.scene import KINDS, TOPOLOGY, Scene


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    kind = BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(kind.place_fixture)))
    yield backend
    backend.close()


@pytest.fixture
async def scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with backend.open(TOPOLOGY, KINDS) as bus:
        scene = Scene(backend, bus, backend.operations(bus))
        yield scene
        scene.check()
