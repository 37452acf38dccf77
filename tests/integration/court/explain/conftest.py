"""Every test of the timeline runs once per registered backend."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.backends import BackendUnderTest
from tests.integration.court.general.scene import CourtScene, opened


@pytest.fixture
async def court(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[CourtScene]:
    """A court with a King, a General, an engine and a host."""
    async with opened(backend, tmp_path / "machine") as court:
        yield court
