"""Run every contract test on each registered backend.

After the test, check the invariants of the store, and that unrelated events (the bystanders) did not change.
"""

from collections.abc import AsyncIterator

import pytest

from tests.contract.backends import BackendUnderTest
from tests.contract.bystanders import part_with, put_bystanders
from tests.contract.scene import KINDS, TOPOLOGY, Scene


@pytest.fixture
async def scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with backend.open(TOPOLOGY, KINDS) as bus:
        scene = Scene(backend, bus, backend.operations(bus), await put_bystanders(bus))
        before = part_with(backend.picture(), scene.bystanders)
        yield scene
        scene.check()
        assert part_with(backend.picture(), scene.bystanders) == before
