"""A Sentinel that is repeatedly killed at any moment loses no event and receives none twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench.servers import free_port
from kingdom.court.sentinel.receiver import PATH
from kingdom.court.sentinel.settings import SentinelSettings
from tests import warm
from tests.contract.backends import BackendUnderTest
from tests.integration.court.sentinel.scene import Watch, github_settings
from tests.integration.standins.github import SECRET, Site
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[4]
LIVES = 3
PULL_REQUESTS = 12


@asynccontextmanager
async def child(backend: BackendUnderTest, url: str, port: int) -> AsyncIterator[None]:
    github = github_settings(url, poll_seconds=0.02, webhook={"port": port})
    settings = msgspec.json.encode(SentinelSettings(github=github)).decode()
    program = "tests.integration.court.sentinel.sentinel_child"
    process = await warm.start(program, backend.name, backend.place, settings, stdout=True)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"begun\n"
        yield
    finally:
        await process.end()


@pytest.mark.both_stores
async def test_activity_during_repeated_kills_is_noticed_once(
    site: Site, watch: Watch, backend: BackendUnderTest
) -> None:
    port = free_port()
    chance = random.Random(5)
    await site.people("limits", poll_interval=0)
    await site.people("hook", url=f"http://127.0.0.1:{port}{PATH}", secret=SECRET)
    for life in range(LIVES):
        async with child(backend, site.url, port):
            for number in range(PULL_REQUESTS // LIVES):
                await site.pull_request(f"feature-{life}-{number}", reviewers=["kingdom-bot"])
                # No synchronization: it may die at any moment.
                await asyncio.sleep(chance.uniform(0, 0.05))
    await watch.look_at_github(site.url)
    assert await watch.types() == ["github.pr.review_requested"] * PULL_REQUESTS
    assert await watch.announced() == await watch.detected() == PULL_REQUESTS
