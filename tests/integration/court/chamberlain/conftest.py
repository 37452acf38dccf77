"""Every test of the Chamberlain runs once per registered backend."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.scene import ChamberlainScene, opened


@pytest.fixture
def directory(backend: BackendUnderTest, tmp_path: Path) -> Path:
    """The directory of the realm, and of the store if that is one of files."""
    return Path(backend.place) if backend.place_fixture == "realm" else tmp_path / "scene"


@pytest.fixture
async def scene(backend: BackendUnderTest, directory: Path) -> AsyncIterator[ChamberlainScene]:
    async with opened(backend, directory) as scene:
        yield scene
