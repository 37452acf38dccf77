"""Every test of petitions runs once per registered backend, against stand-ins for GitHub and Jira."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import RunningServer, start
from tests.contract.backends import BackendUnderTest
from tests.integration.court.petitions.scene import Scene, opened


@pytest.fixture
async def github_site(tmp_path: Path) -> AsyncIterator[RunningServer]:
    running = await start(build_github(tmp_path / "github.json"))
    yield running
    await running.stop()


@pytest.fixture
async def jira_site(tmp_path: Path) -> AsyncIterator[RunningServer]:
    running = await start(build_jira(tmp_path / "jira.json"))
    yield running
    await running.stop()


@pytest.fixture
async def scene(
    backend: BackendUnderTest, github_site: RunningServer, jira_site: RunningServer
) -> AsyncIterator[Scene]:
    async with opened(backend, github_site, jira_site) as scene:
        yield scene
