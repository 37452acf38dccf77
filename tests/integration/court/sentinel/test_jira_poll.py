"""Polling Jira: each change of our tickets by others is received once, and an error changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from kingdom.bus import Record
from kingdom.court.records import CURRENT
from kingdom.errors import Misconfigured, Transient
from kingdom.standins.jira.application import ACCOUNT_ID, build_jira
from kingdom.standins.server import start
from tests.contract.backends import BackendUnderTest
from tests.integration.court.sentinel.scene import RefusingBus, Watch, opened
from tests.integration.standins import jira_site

_BROKEN: dict[str, Any] = {"kind": "refuse", "status": 503}
_CUT_SHORT: dict[str, Any] = {"kind": "truncate"}
_LIMITED: dict[str, Any] = {"kind": "refuse", "status": 429}


def earlier(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[jira_site.Site]:
    """Jira."""
    running = await start(build_jira(tmp_path / "jira.json"))
    async with jira_site.session() as session:
        yield jira_site.Site(running.url, session)
    await running.stop()


async def opened_ticket(tracker: jira_site.Site, **more: Any) -> str:
    asked = {"project": "QP", "summary": "Fix it", "assignee": "me", "at": earlier(30), **more}
    return str((await tracker.people("tickets", **asked))["key"])


async def test_a_ticket_is_assigned_once_then_updated_then_commented(tracker: jira_site.Site, watch: Watch) -> None:
    key = await opened_ticket(tracker)
    assert [(await watch.look_at_jira(tracker.url)).received for _ in range(2)] == [1, 0]
    await tracker.people(f"tickets/{key}", status="In Review", at=earlier(20))
    assert [(await watch.look_at_jira(tracker.url)).received for _ in range(2)] == [1, 0]
    await tracker.people(f"tickets/{key}/comments", body="any news?", at=earlier(10))
    assert [(await watch.look_at_jira(tracker.url)).received for _ in range(2)] == [1, 0]
    assert await watch.types() == ["jira.ticket.assigned", "jira.ticket.commented", "jira.ticket.updated"]
    commented = next(event for event in await watch.events() if event.type == "jira.ticket.commented")
    assert commented.payload["comments"][0]["text"] == "any news?"
    assert await watch.announced() == await watch.detected() == 3


@pytest.mark.parametrize("named", [True, False])
async def test_our_own_activity_creates_no_event(tracker: jira_site.Site, watch: Watch, *, named: bool) -> None:
    ours: dict[str, Any] = {} if named else {"own_accounts": ()}
    key = await opened_ticket(tracker)
    await watch.look_at_jira(tracker.url, **ours)
    await tracker.ask("POST", f"2/issue/{key}/comment", json={"body": "on it"})
    await tracker.ask("POST", f"2/issue/{key}/transitions", json={"transition": {"id": "21"}})
    assert (await watch.look_at_jira(tracker.url, **ours)).received == 0
    await tracker.people(f"tickets/{key}/comments", body="thanks")
    assert (await watch.look_at_jira(tracker.url, **ours)).received == 1
    assert (await watch.events())[-1].payload["status"] == "In Progress"
    assert [comment["text"] for comment in (await watch.events())[-1].payload["comments"]] == ["thanks"]


async def test_a_ticket_that_we_open_ourselves_is_no_news(tracker: jira_site.Site, watch: Watch) -> None:
    await opened_ticket(tracker, by=ACCOUNT_ID)
    assert (await watch.look_at_jira(tracker.url)).received == 0


async def test_every_page_of_tickets_and_comments_is_read(tracker: jira_site.Site, watch: Watch) -> None:
    keys = [await opened_ticket(tracker) for _ in range(110)]
    assert (await watch.look_at_jira(tracker.url)).received == 110
    for number in range(70):
        await tracker.people(f"tickets/{keys[0]}/comments", body=f"{number}", at=earlier(9 - number / 100))
    assert (await watch.look_at_jira(tracker.url)).received == 1
    (event,) = [event for event in await watch.events() if event.type == "jira.ticket.commented"]
    assert [comment["text"] for comment in event.payload["comments"]] == [str(number) for number in range(50, 70)]


async def test_two_changes_in_one_second_are_two_events(tracker: jira_site.Site, watch: Watch) -> None:
    key = await opened_ticket(tracker)
    await watch.look_at_jira(tracker.url)
    second = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
    for milliseconds in (100, 900):
        at = (second + timedelta(milliseconds=milliseconds)).isoformat()
        await tracker.people(f"tickets/{key}/comments", body="news", at=at)
        assert (await watch.look_at_jira(tracker.url)).received == 1
    assert len({event.id for event in await watch.events()}) == 3


@pytest.mark.both_stores
async def test_two_concurrent_polls_receive_everything_once(
    tracker: jira_site.Site, watch: Watch, backend: BackendUnderTest, session: aiohttp.ClientSession
) -> None:
    for _ in range(20):
        await opened_ticket(tracker)
    async with opened(backend, session) as other:
        rounds = await asyncio.gather(*(each.look_at_jira(tracker.url) for each in (watch, other) for _ in range(3)))
    assert sum(each.received for each in rounds) == 20
    assert len(await watch.events()) == await watch.announced() == 20


@pytest.mark.parametrize(
    ("fault", "path"),
    [(_BROKEN, "*/search/jql"), (_CUT_SHORT, "*/search/jql"), (_LIMITED, "*/search/jql"), (_LIMITED, "*/comment")],
)
async def test_a_failed_poll_changes_nothing_and_the_next_one_receives_everything(
    tracker: jira_site.Site, watch: Watch, fault: dict[str, Any], path: str
) -> None:
    key = await opened_ticket(tracker)
    await watch.look_at_jira(tracker.url)
    before = await watch.cursor("jira")
    await opened_ticket(tracker)
    await tracker.people(f"tickets/{key}/comments", body="news")
    await tracker.faults(**fault, path=path)
    with pytest.raises(Transient):
        await watch.look_at_jira(tracker.url)
    assert (len(await watch.events()), await watch.cursor("jira")) == (1, before)
    assert (await watch.look_at_jira(tracker.url)).received == 2


@pytest.mark.parametrize("fault", [_BROKEN, _CUT_SHORT])
async def test_only_a_ticket_without_its_comments_waits_for_the_next_poll(
    tracker: jira_site.Site, watch: Watch, fault: dict[str, Any]
) -> None:
    key = await opened_ticket(tracker)
    await watch.look_at_jira(tracker.url)
    await opened_ticket(tracker)
    await tracker.people(f"tickets/{key}/comments", body="news")
    await tracker.faults(**fault, path="*/comment")
    assert (await watch.look_at_jira(tracker.url)).received == 1
    assert await watch.types() == ["jira.ticket.assigned", "jira.ticket.assigned"]
    assert (await watch.look_at_jira(tracker.url)).received == 1


@pytest.mark.both_stores
async def test_an_event_that_a_person_queued_is_not_received_again(tracker: jira_site.Site, watch: Watch) -> None:
    key = await opened_ticket(tracker, at=earlier(30))
    await watch.look_at_jira(tracker.url)
    at = datetime.now(UTC).replace(microsecond=500_000) - timedelta(minutes=5)
    await tracker.people(f"tickets/{key}/comments", body="news", at=at.isoformat())
    (event,) = await watch.events()
    await watch.drop(msgspec.structs.replace(event, id=f"evt-jira-{key}-{at:%Y%m%d%H%M%S}"))
    await opened_ticket(tracker)
    assert (await watch.look_at_jira(tracker.url)).received == 1
    assert len(await watch.events()) == 3


@pytest.mark.both_stores
async def test_a_ticket_that_cannot_be_stored_holds_back_no_other_and_is_tried_again(
    tracker: jira_site.Site, watch: Watch
) -> None:
    keys = [await opened_ticket(tracker) for _ in range(3)]
    broken = Watch(RefusingBus(watch.bus, keys[1]), watch.operations, watch.session)  # type: ignore[arg-type]
    assert [(await broken.look_at_jira(tracker.url)).received for _ in range(2)] == [2, 0]
    assert (await watch.look_at_jira(tracker.url)).received == 1
    assert sorted(event.payload["key"] for event in await watch.events()) == sorted(keys)


@pytest.mark.parametrize("status", [500, 403])
async def test_a_ticket_whose_comments_cannot_be_read_holds_back_no_other(
    tracker: jira_site.Site, watch: Watch, status: int
) -> None:
    key = await opened_ticket(tracker, at=earlier(300))
    await watch.look_at_jira(tracker.url)
    await tracker.people(f"tickets/{key}/comments", body="news", at=earlier(200))
    await opened_ticket(tracker, at=earlier(1))
    await tracker.faults(kind="refuse", status=status, path=f"*/{key}/comment")
    assert [(await watch.look_at_jira(tracker.url)).received for _ in range(3)] == [1, 1, 0]
    assert await watch.types() == ["jira.ticket.assigned", "jira.ticket.assigned", "jira.ticket.commented"]


async def test_a_part_of_the_history_damaged_by_a_person_starts_over(tracker: jira_site.Site, watch: Watch) -> None:
    await opened_ticket(tracker)
    async with watch.bus.transaction() as transaction:
        await transaction.put(Record(kind="cursor", id="jira", state=CURRENT, doc={"since": "yesterday"}))
    assert (await watch.look_at_jira(tracker.url)).received == 1
    assert await watch.cursor("jira")


async def test_without_an_email_the_token_is_a_bearer(tracker: jira_site.Site, watch: Watch) -> None:
    await opened_ticket(tracker)
    assert (await watch.look_at_jira(tracker.url, email="")).received == 1


async def test_jira_is_polled_again_only_after_the_time_that_it_requests(tracker: jira_site.Site, watch: Watch) -> None:
    assert (await watch.look_at_jira(tracker.url)).again_after == timedelta(minutes=5)
    await tracker.faults(kind="refuse", status=429, retry_after=77)
    with pytest.raises(Transient) as trouble:
        await watch.look_at_jira(tracker.url)
    assert trouble.value.after == timedelta(seconds=77)


@pytest.mark.parametrize("jql", ["assignee = currentUser() ORDER BY key", "nonsense ~~ ("])
async def test_an_impossible_query_is_reported_as_such(tracker: jira_site.Site, watch: Watch, jql: str) -> None:
    with pytest.raises(Misconfigured):
        await watch.look_at_jira(tracker.url, jql=jql)
