"""GitHub reports everything twice, by webhook and by poll, late and in any order: each activity is received once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kingdom.court.sentinel.receiver import PATH, WebhookReceiver
from tests.integration.court.sentinel.scene import Watch
from tests.integration.standins.github import SECRET, Site
from tests.patience import PATIENCE_SECONDS

START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)


def minute(number: float) -> str:
    return (START + timedelta(minutes=number)).isoformat()


@pytest.fixture
async def receiver(watch: Watch, site: Site) -> AsyncIterator[WebhookReceiver]:
    async with watch.receiving() as receiver:
        await site.people("hook", url=receiver.url + PATH, secret=SECRET)
        yield receiver


async def delivered(site: Site) -> list[int]:
    """Wait until GitHub has sent everything, and return the answers that it got."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with site.session.get(f"{site.url}/_control/state") as answer:
                state = await answer.json()
            if not state["outbox"] and not state["held_back"]:
                return [delivery["status_code"] for delivery in state["deliveries"]]
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("receiver")
@pytest.mark.parametrize("looks", ["between", "at the end", "before the webhook", "never"])
async def test_each_activity_around_two_review_requests_becomes_one_event(site: Site, watch: Watch, looks: str) -> None:
    deeds: list[tuple[str, dict[str, Any]]] = [
        ("pull_request", {"title": "Add", "head": "feature", "reviewers": ["kingdom-bot"]}),
        ("comment", {"number": 1, "body": "please hurry"}),
        ("review_request", {"number": 1}),
        ("comment", {"number": 1, "body": "@kingdom-bot?"}),
        ("push", {"number": 1}),
    ]
    for number, (what, doing) in enumerate(deeds):
        if looks == "before the webhook":
            await site.faults({"kind": "delay", "method": "PUSH", "seconds": 0.3})
        await site.happen(what, at=minute(number * 5), **doing)
        if looks == "before the webhook":
            await watch.look_at_github(site.url)
        await delivered(site)
        if looks == "between":
            await watch.look_at_github(site.url)
    if looks != "never":
        await watch.look_at_github(site.url)
    assert len(await watch.events()) == len(deeds)
    assert await watch.announced() == await watch.detected() == len(deeds)
    if looks != "before the webhook":
        assert await watch.types() == [
            "github.pr.comment",
            "github.pr.mentioned",
            "github.pr.review_requested",
            "github.pr.review_requested",
            "github.pr.state_change",
        ]


@pytest.mark.usefixtures("receiver")
@pytest.mark.parametrize("kind", ["repeat", "reorder"])
async def test_duplicate_or_reordered_webhooks_change_nothing(site: Site, watch: Watch, kind: str) -> None:
    await site.pull_request(reviewers=["kingdom-bot"], at=minute(0))
    await delivered(site)
    await site.faults({"kind": kind, "method": "PUSH"})
    await site.happen("comment", number=1, body="one", at=minute(5))
    await site.happen("comment", number=1, body="two", at=minute(10))
    await delivered(site)
    await watch.look_at_github(site.url)
    assert await watch.types() == ["github.pr.comment"] * 2 + ["github.pr.review_requested"]


@pytest.mark.usefixtures("receiver")
async def test_polling_makes_up_for_lost_webhooks(site: Site, watch: Watch) -> None:
    await site.faults({"kind": "refuse", "method": "PUSH", "times": 100})
    await site.pull_request(reviewers=["kingdom-bot"], at=minute(0))
    await site.happen("issue", title="do it", assignees=["kingdom-bot"], at=minute(5))
    assert await watch.events() == []
    await watch.look_at_github(site.url)
    assert await watch.types() == ["github.issue.assigned", "github.pr.review_requested"]


async def test_a_redelivery_hours_later_brings_nothing_new(site: Site, watch: Watch, receiver: WebhookReceiver) -> None:
    await site.faults({"kind": "refuse", "method": "PUSH", "path": "pull_request.review_requested"})
    await site.pull_request(reviewers=["kingdom-bot"], at=minute(0))
    await delivered(site)
    await watch.look_at_github(site.url)
    assert len(await watch.events()) == 1
    async with site.session.get(f"{site.url}/_control/state") as answer:
        state = await answer.json()
    lost = next(each for each in state["deliveries"] if each["action"] == "review_requested")
    headers = {"X_GitHub_Delivery": lost["guid"]}
    sent = [await watch.post(receiver, lost["event"], lost["body"].encode(), **headers) for _ in range(2)]
    assert sent == [(202, "seen")] * 2
    assert len(await watch.events()) == 1


@pytest.mark.usefixtures("receiver")
async def test_our_own_activity_never_creates_an_event(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"], at=minute(0))
    await delivered(site)
    await site.ask("POST", "/repos/acme/rocket/issues/1/comments", json={"body": "@kingdom-bot here"})
    await site.ask("POST", "/repos/acme/rocket/pulls/1/reviews", json={"body": "fine", "event": "APPROVE"})
    await site.ask("PATCH", "/repos/acme/rocket/issues/1", json={"state": "closed"})
    assert set(await delivered(site)) <= {200, 202}
    for _ in range(2):
        await watch.look_at_github(site.url)
    assert await watch.types() == ["github.pr.review_requested"]


@pytest.mark.usefixtures("receiver")
async def test_comments_on_an_issue_become_events_only_after_a_mention(site: Site, watch: Watch) -> None:
    await site.happen("issue", title="theirs", at=minute(0))
    await site.happen("comment", number=1, body="hello", at=minute(1))
    await delivered(site)
    await watch.look_at_github(site.url)
    assert await watch.events() == []
    await site.happen("comment", number=1, body="@kingdom-bot help", at=minute(2))
    await site.happen("comment", number=1, body="anybody?", at=minute(3))
    await delivered(site)
    await watch.look_at_github(site.url)
    assert await watch.types() == ["github.issue.comment", "github.issue.mentioned"]


@pytest.mark.both_stores
@pytest.mark.usefixtures("receiver")
async def test_concurrent_webhooks_and_polls_notice_everything_once(site: Site, watch: Watch) -> None:
    looking = [asyncio.create_task(watch.look_at_github(site.url)) for _ in range(2)]
    for number in range(10):
        await site.pull_request(f"feature-{number}", reviewers=["kingdom-bot"], at=minute(number))
        looking.append(asyncio.create_task(watch.look_at_github(site.url)))
    await asyncio.gather(*looking)
    await delivered(site)
    await watch.look_at_github(site.url)
    assert await watch.types() == ["github.pr.review_requested"] * 10
