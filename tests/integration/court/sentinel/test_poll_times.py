"""When the Sentinel looks at followed pull requests, and how many requests that costs."""

import asyncio
from datetime import timedelta

from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import end_followup, load_followup
from kingdom.court.sentinel.followed_pulls import hint_pull_requests
from kingdom.court.sentinel.receiver import PATH
from tests.integration.court.sentinel.polls import HOUR, LINE, REQUESTS_PER_LOOK, Look, end_of, submit
from tests.integration.court.sentinel.scene import Watch
from tests.integration.court.sentinel.test_both import delivered
from tests.integration.standins.github import REPOSITORY, SECRET, Site


async def test_an_hour_without_news_costs_four_requests_per_look_and_no_rate_limit(site: Site, look: Look) -> None:
    await site.pull_request("theirs")
    assert await look() == [], "another pull request changes the numbers of the repository"
    before = await site.read("/rate_limit")
    counted = []
    for _ in range(60):
        assert await look(later=timedelta(minutes=1), webhook={}) == []
        counted += look.requests
    # With webhooks, there is a look every five minutes.
    assert len(counted) == REQUESTS_PER_LOOK * 12
    assert {status for _, status in counted} == {304}
    assert not any("/pulls/2" in path for path, _ in counted)
    after = await site.read("/rate_limit")
    assert after["resources"]["core"]["used"] == before["resources"]["core"]["used"]


async def test_without_followups_nothing_is_asked(watch: Watch, site: Site) -> None:
    await site.pull_request("theirs")
    look = Look(watch, site)
    assert await look() == []
    assert look.requests == []


async def test_after_its_days_a_followup_costs_no_request(look: Look, watch: Watch) -> None:
    assert await look(later=timedelta(days=15)) == []
    assert look.requests == []
    assert await end_of(watch) == "", "the King ends it"


async def test_an_ended_followup_is_not_looked_at_any_more(look: Look, watch: Watch) -> None:
    async with watch.bus.transaction() as transaction:
        record, followup = await load_followup(transaction, f"{REPOSITORY}#1")
        await end_followup(transaction, record, followup, "stopped", at=look.now, actor="anna")
    assert await look() == []
    assert look.requests == []
    async with watch.bus.transaction() as transaction:
        left = await transaction.get(PULL_POLLS.name, f"{REPOSITORY}#1")
    assert left is not None
    assert left.state == "ended"


async def test_two_sentinels_look_once(look: Look, watch: Watch) -> None:
    look.now += HOUR
    other = Look(watch, look.site)
    other.now = look.now
    await asyncio.gather(look(later=timedelta()), other(later=timedelta()))
    assert len(look.requests) + len(other.requests) == REQUESTS_PER_LOOK


async def test_a_webhook_makes_a_look_due_and_reports_nothing_itself(site: Site, look: Look, watch: Watch) -> None:
    async with watch.receiving() as receiver:
        await site.people("hook", url=receiver.url + PATH, secret=SECRET)
        await submit(site, comments=[LINE])
        await site.happen("check", number=1, name="unit", conclusion="failure")
        await delivered(site)
    events = await look(later=timedelta(seconds=1))
    assert sorted(event.type for event in events) == ["github.checks.completed", "github.pr.review_submitted"]
    assert await look() == []


async def test_a_status_makes_the_looks_at_its_repository_due(look: Look, watch: Watch) -> None:
    for repo, hinted in (("other/shop", 0), (REPOSITORY[:-1], 0), (REPOSITORY.upper(), 1)):
        async with watch.bus.transaction() as transaction:
            assert await hint_pull_requests(transaction, repo, (), look.now) == hinted
