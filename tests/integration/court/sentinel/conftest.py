"""Every test of the Sentinel runs once per registered backend, unless it says otherwise."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.contract.backends import BackendUnderTest
from tests.integration.court.sentinel.scene import Watch, opened
from tests.integration.standins.github import Site, standing_in
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)) as session:
        yield session


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """GitHub."""
    async with standing_in(tmp_path / "github.json") as site:
        yield site


@pytest.fixture
async def watch(backend: BackendUnderTest, session: aiohttp.ClientSession) -> AsyncIterator[Watch]:
    """A store with the actions of a Sentinel."""
    async with opened(backend, session) as watch:
        yield watch
