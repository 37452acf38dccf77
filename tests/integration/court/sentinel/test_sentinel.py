"""A running Sentinel polls and receives until it is stopped, and continues after errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import structlog

from kingdom.bus import Bus, RetryPolicy
from kingdom.clock import utc_now
from kingdom.court.sentinel.receiver import PATH
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.sentinel.settings import SentinelSettings
from kingdom.court.text_logs import TextLog, tee
from kingdom.log_output import configure_logs
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import start
from tests.integration.court.sentinel.scene import RefusingBus, Watch, github_settings, jira_settings
from tests.integration.standins import jira_site
from tests.integration.standins.github import SECRET, Site
from tests.patience import PATIENCE_SECONDS

SOON = RetryPolicy(base=timedelta(milliseconds=10), cap=timedelta(milliseconds=50))


@asynccontextmanager
async def at_work(
    bus: Bus, settings: SentinelSettings, clock: Callable[[], datetime] = utc_now
) -> AsyncIterator[Sentinel]:
    sentinel = Sentinel(bus, settings, backoff=SOON, clock=clock)
    running = asyncio.create_task(sentinel.run())
    try:
        yield sentinel
    finally:
        sentinel.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[jira_site.Site]:
    """Jira."""
    running = await start(build_jira(tmp_path / "jira.json"))
    async with jira_site.session() as session:
        yield jira_site.Site(running.url, session)
    await running.stop()


async def test_a_sentinel_polls_github_and_jira_and_receives_webhooks_until_it_is_stopped(
    site: Site, tracker: jira_site.Site, watch: Watch
) -> None:
    settings = SentinelSettings(
        github=github_settings(site.url, poll_seconds=600), jira=jira_settings(tracker.url, poll_seconds=0.05)
    )
    await site.pull_request(reviewers=["kingdom-bot"])
    async with at_work(watch.bus, settings) as sentinel:
        await tracker.people("tickets", project="QP", summary="Fix it", assignee="me")

        async def both_are_there() -> bool:
            return await watch.types() == ["github.pr.review_requested", "jira.ticket.assigned"]

        await until(both_are_there)
        assert sentinel.receiver is not None
        await site.people("hook", url=sentinel.receiver.url + PATH, secret=SECRET)
        await site.happen("comment", number=1, body="@kingdom-bot, please")

        async def the_webhook_is_there() -> bool:
            return len(await watch.events()) == 3

        await until(the_webhook_is_there)


async def test_a_sentinel_continues_after_an_error(site: Site, watch: Watch) -> None:
    await site.people("limits", poll_interval=0)
    await site.faults({"kind": "refuse", "status": 500, "times": 3}, {"kind": "refuse", "status": 401, "times": 2})
    await site.faults({"kind": "truncate"})
    await site.pull_request(reviewers=["kingdom-bot"])
    settings = SentinelSettings(github=github_settings(site.url, poll_seconds=0.05))
    unforeseen = iter([ValueError("of memory"), ValueError("of github")])

    def clock() -> datetime:
        if error := next(unforeseen, None):
            raise error
        return utc_now()

    async def it_is_there() -> bool:
        return len(await watch.events()) == 1

    async with at_work(watch.bus, settings, clock):
        await until(it_is_there)


@pytest.mark.both_stores
async def test_two_sentinels_notice_everything_once(site: Site, watch: Watch) -> None:
    await site.people("limits", poll_interval=0)
    settings = SentinelSettings(github=github_settings(site.url, poll_seconds=0.05))

    async def all_are_there() -> bool:
        return len(await watch.events()) == 10

    async with at_work(watch.bus, settings), at_work(watch.bus, settings):
        for number in range(10):
            await site.pull_request(f"feature-{number}", reviewers=["kingdom-bot"])
        await until(all_are_there)
    assert await watch.announced() == await watch.detected() == 10


async def test_a_sentinel_without_sources_waits_until_it_is_stopped(watch: Watch) -> None:
    async with at_work(watch.bus, SentinelSettings()) as sentinel:
        assert sentinel.receiver is None


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_each_stored_event_has_a_line_in_the_log_of_tasks(site: Site, watch: Watch, tmp_path: Path) -> None:
    log = TextLog(tmp_path / "tasks.log")
    configure_logs(json=True, also=[tee(log, "sentinel", only_tasks=True)])
    structlog.get_logger("kingdom.court.sentinel").info("waiting for webhooks")
    await site.pull_request("one", title="Add one", reviewers=["kingdom-bot"])
    await site.pull_request("two", title="Add two", reviewers=["kingdom-bot"])
    # The store refuses the second event, so that event must not be logged.
    broken = Watch(RefusingBus(watch.bus, "Add two"), watch.operations, watch.session)  # type: ignore[arg-type]
    await broken.look_at_github(site.url)
    (event,) = await watch.events()
    (line,) = (tmp_path / "tasks.log").read_text().splitlines()
    facts = "source=github event_type=github.pr.review_requested"
    assert line.endswith(f" info sentinel: [EVENT] Emitted: {event.id} {facts}")
