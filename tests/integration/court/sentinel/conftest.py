"""Every test of the Sentinel runs once per registered backend, unless it says otherwise."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kingdom.clock import utc_now
from kingdom.court.followups.records import Followup, follow_pull_request
from tests.contract.backends import BackendUnderTest
from tests.integration.court.sentinel.polls import FILES, Look
from tests.integration.court.sentinel.scene import Watch, opened
from tests.integration.standins.github import REPOSITORY, Site, standing_in
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


@pytest.fixture
async def pull(site: Site) -> Any:
    """A pull request of ours, with people who may write and people who may not."""
    pull = await site.pull_request("ours", by="kingdom-bot", files=FILES)
    await site.happen("permission", login="anna", permission="write")
    await site.happen("permission", login="rita", permission="read")
    return pull


@pytest.fixture
async def look(watch: Watch, site: Site, pull: Any) -> Look:
    """The pull request is followed, and was looked at once."""
    now = utc_now()
    followup = Followup(
        id=f"{REPOSITORY}#{pull['number']}",
        repo=REPOSITORY,
        number=pull["number"],
        branch="ours",
        base="main",
        general="gen-jira",
        assignment_id="task-20261118-001",
        workflow_id="wf-task-20261118-001",
        head=pull["head"]["sha"],
        created_at=now,
        ends_at=now + timedelta(days=14),
    )
    async with watch.bus.transaction() as transaction:
        await follow_pull_request(transaction, followup)
    look = Look(watch, site)
    assert await look() == []
    return look
