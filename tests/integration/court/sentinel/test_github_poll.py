"""Polling GitHub: every activity that concerns us is received once, and an error changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kingdom.bus import Bus, Transaction
from kingdom.court.documents import EventStatus
from kingdom.court.sentinel.github import parse_notification
from kingdom.errors import Misconfigured, Transient, Unavailable
from kingdom.standins.server import start
from tests.contract.backends import BackendUnderTest
from tests.integration.court.sentinel.scene import RefusingBus, Watch, opened
from tests.integration.standins.github import REPOSITORY, Site


def earlier(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


async def test_a_review_request_is_received_once_and_the_king_is_notified(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    first, second = await watch.look_at_github(site.url), await watch.look_at_github(site.url)
    assert (first.received, second.received) == (1, 0)
    (event,) = await watch.events()
    assert (event.type, event.repo, event.payload["number"]) == ("github.pr.review_requested", REPOSITORY, 1)
    assert await watch.announced() == await watch.detected() == 1


async def test_a_review_that_is_requested_again_is_received_again(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"], at=earlier(5))
    assert (await watch.look_at_github(site.url)).received == 1
    await site.happen("review_request", number=1, at=earlier(3))
    assert (await watch.look_at_github(site.url)).received == 1
    assert len(await watch.events()) == 2


async def test_nothing_is_marked_as_read_and_activity_that_a_person_has_read_is_received_too(
    site: Site, watch: Watch
) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    await site.ask("PUT", "/notifications", json={})
    changed = await site.calls()
    assert (await watch.look_at_github(site.url)).received == 1
    assert await site.calls() == changed


async def test_every_page_is_read(site: Site, watch: Watch) -> None:
    for number in range(110):
        await site.pull_request(f"feature-{number}", reviewers=["kingdom-bot"])
    assert (await watch.look_at_github(site.url)).received == 110


async def test_unchanged_content_is_not_sent_again(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    statuses = []
    trace = aiohttp.TraceConfig()

    async def note(_: Any, __: Any, params: aiohttp.TraceRequestEndParams) -> None:
        statuses.append(params.response.status)

    trace.on_request_end.append(note)
    async with aiohttp.ClientSession(trace_configs=[trace]) as session:
        seen = Watch(watch.bus, watch.operations, session)
        for _ in range(4):
            await seen.look_at_github(site.url)
        assert statuses[-2:] == [304, 304]
        await site.pull_request("other", reviewers=["kingdom-bot"])
        assert (await seen.look_at_github(site.url)).received == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "refuse", "status": 500},
        {"kind": "refuse", "status": 502},
        {"kind": "refuse", "status": 429, "retry_after": 7},
        {"kind": "truncate"},
        # A client retries by itself after a kept connection was closed.
        {"kind": "lose_answer", "times": 2},
    ],
)
async def test_a_failed_poll_changes_nothing_and_the_next_one_receives_everything(
    site: Site, watch: Watch, fault: dict[str, Any]
) -> None:
    for number in range(60):
        await site.pull_request(f"feature-{number}", reviewers=["kingdom-bot"])
    # The first page is complete, but an incomplete poll stores nothing.
    await site.faults({"kind": "delay", "seconds": 0}, fault | {"path": "/notifications"})
    with pytest.raises(Transient) as trouble:
        await watch.look_at_github(site.url)
    assert await watch.events() == []
    assert await watch.cursor("github") is None
    if fault.get("retry_after"):
        assert trouble.value.after == timedelta(seconds=7)
    assert (await watch.look_at_github(site.url)).received == 60


class _Breaking:
    """A store that fails at the first commit with changes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.failed = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._bus.transaction() as transaction:
            yield transaction
            if transaction.changes.puts and not self.failed:
                self.failed = True
                raise Unavailable("the store went away")


async def test_events_and_the_poll_position_are_stored_together_or_not_at_all(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    breaking = _Breaking(watch.bus)
    broken = Watch(breaking, watch.operations, watch.session)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await broken.look_at_github(site.url)
    assert breaking.failed
    assert (await watch.events(), await watch.cursor("github"), await watch.announced()) == ([], None, 0)
    assert (await broken.look_at_github(site.url)).received == 1


async def test_a_wrong_token_is_reported_as_such(site: Site, watch: Watch) -> None:
    with pytest.raises(Misconfigured, match="401"):
        await watch.look_at_github(site.url, token="wrong")  # noqa: S106 - it opens nothing


async def test_the_poll_interval_is_the_one_that_github_requests(site: Site, watch: Watch) -> None:
    await site.people("limits", poll_interval=90)
    assert (await watch.look_at_github(site.url)).again_after == timedelta(seconds=90)
    assert (await watch.look_at_github(site.url, poll_seconds=300)).again_after == timedelta(seconds=300)
    await site.people("limits", remaining=1, reset_seconds=1800)
    await site.pull_request(reviewers=["kingdom-bot"])
    assert (await watch.look_at_github(site.url)).again_after > timedelta(minutes=20)
    with pytest.raises(Transient) as trouble:
        await watch.look_at_github(site.url)
    assert trouble.value.after is not None
    assert trouble.value.after > timedelta(minutes=20)


async def test_a_secondary_limit_is_respected(site: Site, watch: Watch) -> None:
    await site.people("limits", secondary={"retry_after": 33})
    with pytest.raises(Transient) as trouble:
        await watch.look_at_github(site.url)
    assert trouble.value.after == timedelta(seconds=33)


@pytest.mark.both_stores
async def test_two_concurrent_polls_receive_everything_once(
    site: Site, watch: Watch, backend: BackendUnderTest, session: aiohttp.ClientSession
) -> None:
    for number in range(20):
        await site.pull_request(f"feature-{number}", reviewers=["kingdom-bot"])
    async with opened(backend, session) as other:
        rounds = await asyncio.gather(*(each.look_at_github(site.url) for each in (watch, other) for _ in range(3)))
    assert sum(each.received for each in rounds) == 20
    assert len(await watch.events()) == await watch.announced() == await watch.detected() == 20


async def test_activity_of_our_other_accounts_creates_no_event(site: Site, watch: Watch) -> None:
    ours: dict[str, Any] = {"logins": ("kingdom-bot", "kingdom[bot]")}
    await site.pull_request(reviewers=["kingdom-bot"], at=earlier(9))
    assert (await watch.look_at_github(site.url, **ours)).received == 1
    await site.happen("comment", number=1, body="working on it", by="kingdom[bot]", at=earlier(8))
    assert (await watch.look_at_github(site.url, **ours)).received == 0
    await site.happen("review", number=1, body="fine", by="kingdom[bot]", at=earlier(7))
    assert (await watch.look_at_github(site.url, **ours)).received == 0
    await site.happen("comment", number=1, body="thanks", by="octocat", at=earlier(6))
    assert (await watch.look_at_github(site.url, **ours)).received == 1


async def test_a_deleted_comment_does_not_hide_other_activity(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"], at=earlier(9))
    await site.happen("comment", number=1, body="hello", at=earlier(8))
    await site.faults({"kind": "refuse", "status": 404, "path": "/repos/*/comments/*"})
    assert (await watch.look_at_github(site.url)).received == 1


async def test_a_comment_that_cannot_be_fetched_is_awaited_for_a_limited_time(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"], at=earlier(30))
    await site.happen("comment", number=1, body="hello", at=earlier(5))
    fault = {"kind": "refuse", "status": 500, "path": "/repos/*/comments/*"}
    await site.faults(fault)
    assert (await watch.look_at_github(site.url)).received == 0
    await site.happen("comment", number=1, body="hello", at=earlier(20))
    await site.faults(fault)
    assert (await watch.look_at_github(site.url)).received == 1


async def test_an_activity_whose_comment_cannot_be_read_holds_back_no_other(site: Site, watch: Watch) -> None:
    await site.pull_request("one", reviewers=["kingdom-bot"], at=earlier(30))
    await site.happen("comment", number=1, body="hello", at=earlier(5))
    await site.pull_request("two", reviewers=["kingdom-bot"], at=earlier(1))
    await site.faults({"kind": "refuse", "status": 500, "path": "/repos/*/comments/*"})
    assert (await watch.look_at_github(site.url)).received == 1
    assert [event.payload["number"] for event in await watch.events()] == [2]
    # GitHub would answer that nothing changed, but the activity is still missing.
    assert (await watch.look_at_github(site.url)).received == 1
    assert sorted(event.payload["number"] for event in await watch.events()) == [1, 2]


@pytest.mark.both_stores
@pytest.mark.parametrize("status", [EventStatus.PENDING, EventStatus.DISPATCHED, EventStatus.COMPLETED])
async def test_an_event_that_a_person_queued_is_not_received_again_and_holds_back_no_other(
    site: Site, watch: Watch, status: EventStatus
) -> None:
    await site.pull_request("one", reviewers=["kingdom-bot"])
    (notification,) = await site.read("/notifications")
    queued = parse_notification(notification, datetime.now(UTC)).event
    await watch.drop(queued, status)
    await site.pull_request("two", reviewers=["kingdom-bot"])
    brought = await watch.look_at_github(site.url)
    assert (brought.received, brought.seen) == (1, 1)
    assert {event.id: event.status for event in await watch.events()}[queued.id] == status
    assert len(await watch.events()) == 2
    assert await watch.announced() == await watch.detected() == 1


@pytest.mark.both_stores
async def test_an_event_that_cannot_be_stored_holds_back_no_other_and_is_tried_again(site: Site, watch: Watch) -> None:
    for branch in ("one", "two", "three"):
        await site.pull_request(branch, title=f"Add {branch}", reviewers=["kingdom-bot"])
    refusing = RefusingBus(watch.bus, "Add two")
    broken = Watch(refusing, watch.operations, watch.session)  # type: ignore[arg-type]
    assert [(await broken.look_at_github(site.url)).received for _ in range(2)] == [2, 0]
    assert sorted(event.payload["number"] for event in await watch.events()) == [1, 3]
    assert (await watch.look_at_github(site.url)).received == 1
    assert await watch.announced() == await watch.detected() == 3


async def test_only_watched_repositories_reasons_and_people_become_events(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    await site.happen("issue", title="look", assignees=["kingdom-bot"])
    await site.happen("issue", title="look", body="@kingdom-bot")
    await site.people("issue", repository="other/thing", title="look", assignees=["kingdom-bot"])
    brought = await watch.look_at_github(site.url, repos=("acme/*",), reasons=("assign", "review_requested"))
    assert (brought.received, brought.dropped) == (2, 2)
    assert await watch.types() == ["github.issue.assigned", "github.pr.review_requested"]


async def test_one_invalid_notification_hides_no_other(site: Site, watch: Watch) -> None:
    await site.pull_request(reviewers=["kingdom-bot"])
    real = await site.read("/notifications")

    async def answer(_: web.Request) -> web.Response:
        return web.json_response([None, {"id": "../x"}, 5, *real], headers={"ETag": ""})

    application = web.Application()
    application.router.add_get("/notifications", answer)
    running = await start(application)
    try:
        brought = await watch.look_at_github(running.url)
        assert (brought.received, brought.dropped) == (1, 3)
        # An empty ETag says nothing: it must not be sent back.
        cursor = await watch.cursor("github")
        assert cursor is not None
        assert cursor.etag == ""
    finally:
        await running.stop()


@pytest.mark.parametrize("body", ["{}", "[", "null", "[" * 100_000])
async def test_an_answer_that_is_not_a_list_changes_nothing(watch: Watch, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    application = web.Application()
    application.router.add_get("/notifications", answer)
    running = await start(application)
    try:
        with pytest.raises(Transient):
            await watch.look_at_github(running.url)
        assert await watch.cursor("github") is None
    finally:
        await running.stop()


async def test_our_token_is_sent_to_no_other_server(watch: Watch) -> None:
    asked = []

    async def steal(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response([])

    async def answer(_: web.Request) -> web.Response:
        return web.json_response([], headers={"Link": f'<{thief.url}/notifications?page=2>; rel="next"'})

    async def move(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"{thief.url}/notifications"})

    elsewhere = web.Application()
    elsewhere.router.add_get("/{path:.*}", steal)
    thief = await start(elsewhere)
    for handler, error in ((answer, Transient), (move, Misconfigured)):
        application = web.Application()
        application.router.add_get("/notifications", handler)
        running = await start(application)
        with pytest.raises(error):
            await watch.look_at_github(running.url)
        await running.stop()
    await thief.stop()
    assert asked == []
