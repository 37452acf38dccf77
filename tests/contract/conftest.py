"""Run every contract test on each registered backend, and check the invariants of the store after the test."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.backends import BackendUnderTest
from tests.contract.bystanders import only, put_bystanders
from tests.contract.scene import KINDS, TOPOLOGY, Scene


@pytest.fixture
async def scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with backend.open(TOPOLOGY, KINDS) as bus:
        scene = Scene(backend, bus, backend.operations(bus), await put_bystanders(bus))
        before = only(backend.picture(), scene.bystanders)
        yield scene
        scene.check()
        assert only(backend.picture(), scene.bystanders) == before
