"""The stand-in for Jira, as the official client and plain requests see it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jira import JIRAError

from kingdom.standins.jira.application import ACCOUNT_ID, EMAIL, TOKEN, build_jira
from kingdom.standins.server import STATE_FILE, RunningServer, start
from tests.integration.standins.jira_site import Site, official, program, session
from tests.patience import PATIENCE_SECONDS

LINES = {"type": "doc", "version": 1, "content": [{"type": "paragraph", "content": [{"type": "text", "text": "Hm."}]}]}


def keys(issues: Iterable[dict[str, Any]]) -> list[str]:
    return [issue["key"] for issue in issues]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningServer]:
    standin = await start(build_jira(tmp_path / "jira.json"))
    yield standin
    await standin.stop()


@pytest.fixture
async def site(running: RunningServer) -> AsyncIterator[Site]:
    async with session() as requests:
        yield Site(running.url, requests)


async def test_the_official_client_finds_tickets_page_by_page(site: Site) -> None:
    opened = await site.tickets(5)
    async with official(site) as client:
        jql = "(assignee = currentUser()) AND project = QP ORDER BY updated ASC"
        first = await asyncio.to_thread(client.enhanced_search_issues, jql, maxResults=3)
        token = first.nextPageToken
        second = await asyncio.to_thread(client.enhanced_search_issues, jql, nextPageToken=token, maxResults=3)
        everything = await asyncio.to_thread(client.enhanced_search_issues, jql, maxResults=0, use_post=True)
    assert [issue.key for issue in first] == opened[:3]
    assert [issue.key for issue in second] == opened[3:]
    assert second.nextPageToken is None
    assert [issue.key for issue in everything] == opened
    assert first[1].fields.summary == "Ticket 1"
    assert first[0].fields.assignee.accountId == ACCOUNT_ID
    assert first[1].fields.updated == "2026-02-07T10:01:00.000+0000"


async def test_the_official_client_reads_comments_moves_and_assigns_a_ticket(site: Site) -> None:
    await site.people("users", accountId="712020:ada", displayName="Ada", emailAddress="ada@example.com")
    (key,) = await site.tickets(1)
    async with official(site) as client:
        written = await asyncio.to_thread(client.add_comment, key, "First line\nSecond line")
        steps = await asyncio.to_thread(client.transitions, key)
        await asyncio.to_thread(client.transition_issue, key, "In Progress")
        await asyncio.to_thread(client.assign_issue, key, "ada@example.com")
        issue = await asyncio.to_thread(client.issue, key, expand="changelog")
        comments = await asyncio.to_thread(client.comments, key)
    assert written.body == "First line\nSecond line"
    assert [step["name"] for step in steps] == ["To Do", "In Progress", "In Review", "Done"]
    assert issue.fields.status.name == "In Progress"
    assert issue.raw["fields"]["assignee"]["displayName"] == "Ada"
    assert [comment.id for comment in comments] == [written.id]
    assigned, moved = (history.items[0] for history in issue.changelog.histories)
    assert (moved.field, moved.fromString, moved.toString) == ("status", "To Do", "In Progress")
    assert (assigned.to, assigned.toString) == ("712020:ada", "Ada")
    assert await site.calls() == ["POST comment", "POST transition", "PUT assignee"]


async def test_version_3_shows_texts_as_documents(site: Site) -> None:
    opened = await site.people("tickets", project="QP", summary="Broken", description="It broke.\n\nAgain.")
    async with official(site, "3") as client:
        issue = await asyncio.to_thread(client.issue, opened["key"])
        written = await asyncio.to_thread(client.add_comment, opened["key"], LINES)
        myself = await asyncio.to_thread(client.myself)
    assert issue.raw["fields"]["description"]["content"][0]["content"][0]["text"] == "It broke."
    assert written.raw["body"] == LINES
    assert (myself["accountId"], myself["emailAddress"]) == (ACCOUNT_ID, EMAIL)
    _, plain = await site.ask("GET", f"2/issue/{opened['key']}")
    assert plain["fields"]["description"] == "It broke.\n\nAgain."
    assert plain["fields"]["comment"]["comments"][0]["body"] == "Hm."


async def test_the_official_client_receives_the_reason_of_a_refusal(site: Site) -> None:
    async with official(site) as client:
        with pytest.raises(JIRAError, match="Unbounded JQL queries are not allowed here") as refused:
            await asyncio.to_thread(client.enhanced_search_issues, "ORDER BY updated")
        assert refused.value.status_code == 400
        with pytest.raises(JIRAError, match="Issue does not exist") as missing:
            await asyncio.to_thread(client.issue, "QP-404")
        assert missing.value.status_code == 404


async def test_a_search_returns_no_more_than_requested(site: Site) -> None:
    (key,) = await site.tickets(1)
    jql = f"key = {key}"
    _, bare = await site.search(jql)
    assert bare == {"issues": [{"id": "10001"}], "isLast": True}
    _, some = await site.search(jql, fields="summary,status", expand="changelog")
    assert set(some["issues"][0]["fields"]) == {"summary", "status"}
    assert some["issues"][0]["changelog"]["histories"] == []
    _, named = await site.search(jql, fields="key")
    assert named["issues"][0]["key"] == key
    assert "fields" not in named["issues"][0]
    _, navigable = await site.search(jql, fields="*navigable,-labels")
    assert {"labels", "comment"}.isdisjoint(navigable["issues"][0]["fields"])
    body = {"jql": jql, "fields": ["updated"], "maxResults": 1}
    _, posted = await site.ask("POST", "3/search/jql", json=body)
    assert posted["issues"][0]["fields"] == {"updated": "2026-02-07T10:00:00.000+0000"}


async def test_a_ticket_that_changes_between_two_pages_is_on_a_later_page_again(site: Site) -> None:
    first, second, third = await site.tickets(3)
    asked = {"jql": "project = QP ORDER BY updated", "fields": "key", "maxResults": "2"}
    _, page = await site.search(**asked)
    assert keys(page["issues"]) == [first, second]
    await site.people(f"tickets/{first}", summary="Touched", at="2026-02-07T11:00:00Z")
    _, rest = await site.search(**asked, nextPageToken=page["nextPageToken"])
    assert keys(rest["issues"]) == [third, first]
    assert rest["isLast"]


async def test_tickets_of_the_same_moment_are_each_on_one_page(site: Site) -> None:
    for number in range(7):
        await site.people("tickets", project="QP", summary=f"Ticket {number}", at="2026-02-07T10:00:00Z")
    asked = {"jql": "project = QP ORDER BY updated DESC", "fields": "key", "maxResults": "2"}
    _, page = await site.search(**asked)
    found = keys(page["issues"])
    while not page["isLast"]:
        _, page = await site.search(**asked, nextPageToken=page["nextPageToken"])
        found += keys(page["issues"])
    assert sorted(found) == [f"QP-{number}" for number in range(1, 8)]


async def test_a_search_that_lags_finds_no_new_changes_unless_they_are_reconciled(site: Site) -> None:
    first, second = await site.tickets(2)
    await site.people("search", lags=True)
    changed = await site.people(f"tickets/{first}", status="Done")
    opened = await site.people("tickets", project="QP", summary="New")
    assert (await site.search("status = Done"))[1]["issues"] == []
    asked = {"jql": "project = QP ORDER BY key", "fields": "status"}
    _, behind = await site.search(**asked)
    assert keys(behind["issues"]) == [first, second]
    assert behind["issues"][0]["fields"]["status"]["name"] == "Done"
    _, reconciled = await site.search("status = Done", fields="key", reconcileIssues=changed["id"])
    assert keys(reconciled["issues"]) == [first]
    await site.people("search", lags=False)
    _, current = await site.search(**asked)
    assert keys(current["issues"]) == [first, second, opened["key"]]


async def test_keys_are_sorted_by_their_number(site: Site) -> None:
    opened = await site.tickets(11)
    _, found = await site.search("project = QP ORDER BY key DESC", fields="key")
    assert keys(found["issues"]) == opened[::-1]


async def test_tickets_with_other_fields_than_the_key_are_returned_a_hundred_at_a_time(site: Site) -> None:
    for number in range(101):
        await site.people("tickets", project="QP", summary=f"Ticket {number}")
    _, full = await site.search("project = QP", fields="summary", maxResults="5000")
    _, names = await site.search("project = QP", fields="key", maxResults="5000")
    assert (len(full["issues"]), len(names["issues"])) == (100, 101)


@pytest.mark.parametrize("path", ["2/search", "3/search"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_old_search_is_gone(site: Site, method: str, path: str) -> None:
    status, answer = await site.ask(method, path)
    assert status == 410
    assert "Please migrate to the /rest/api/3/search/jql API" in answer["errorMessages"][0]


@pytest.mark.parametrize(
    ("jql", "complaint"),
    [
        ("", "Unbounded JQL queries are not allowed here. Please add a search restriction to your query."),
        ("project = NOPE", "The value 'NOPE' does not exist for the field 'project'."),
        ("status = Nope", "The value 'Nope' does not exist for the field 'status'."),
        ("key = QP-404", "An issue with key 'QP-404' does not exist for field 'key'."),
        ("updated > soon", "This stand-in for Jira does not support the JQL 'updated > soon'."),
    ],
)
async def test_a_bad_query_is_refused(site: Site, jql: str, complaint: str) -> None:
    status, answer = await site.search(jql)
    assert status == 400
    assert answer["errorMessages"][0].startswith(complaint)
    assert answer["errors"] == {}


@pytest.mark.parametrize("token", ["nonsense", "bm9uc2Vuc2U="])
async def test_an_invented_page_token_is_refused(site: Site, token: str) -> None:
    await site.tickets(1)
    status, _ = await site.search("project = QP", nextPageToken=token)
    assert status == 400


async def test_a_page_token_of_another_order_is_refused(site: Site) -> None:
    await site.tickets(2)
    _, page = await site.search("project = QP ORDER BY key", maxResults="1")
    status, _ = await site.search("project = QP ORDER BY updated", nextPageToken=page["nextPageToken"])
    assert status == 400


async def test_only_the_account_of_the_site_may_connect(site: Site) -> None:
    for wrong in ("", "Basic nonsense!", aiohttp.encode_basic_auth(EMAIL, "wrong"), "Bearer wrong"):
        status, answer = await site.ask("GET", "3/myself", headers={"Authorization": wrong})
        assert (status, answer["message"]) == (401, "Client must be authenticated to access this resource.")
    assert (await site.ask("GET", "3/myself", headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
    _, server = await site.ask("GET", "3/serverInfo", headers={"Authorization": ""})
    assert server["deploymentType"] == "Cloud"


async def test_actions_of_people_are_visible_in_the_ticket(site: Site) -> None:
    (key,) = await site.tickets(1)
    await site.people(f"tickets/{key}", status="Done", labels=["late"], assignee=None, at="2026-02-07T11:00:00.25Z")
    _, changed = await site.ask("GET", f"3/issue/{key}?expand=changelog")
    assert changed["fields"]["updated"] == "2026-02-07T11:00:00.250+0000"
    assert changed["fields"]["status"]["statusCategory"]["key"] == "done"
    assert (changed["fields"]["labels"], changed["fields"]["assignee"]) == (["late"], None)
    items = changed["changelog"]["histories"][0]["items"]
    assert {item["field"] for item in items} == {"status", "labels", "assignee"}
    await site.people(f"tickets/{key}/comments", body="Why?", by="712020:ada", at="2026-02-07T12:00:00+01:00")
    _, commented = await site.ask("GET", f"3/issue/{key}/comment")
    assert commented["comments"][0]["author"]["accountId"] == "712020:ada"
    assert commented["comments"][0]["created"] == "2026-02-07T11:00:00.000+0000"
    assert await site.calls() == []


async def test_comments_come_in_pages(site: Site) -> None:
    (key,) = await site.tickets(1)
    for number in range(3):
        await site.people(f"tickets/{key}/comments", body=f"Comment {number}")
    _, page = await site.ask("GET", f"2/issue/{key}/comment?startAt=1&maxResults=1")
    assert (page["total"], [comment["body"] for comment in page["comments"]]) == (3, ["Comment 1"])
    _, newest = await site.ask("GET", f"2/issue/{key}/comment?orderBy=-created&maxResults=2")
    assert [comment["body"] for comment in newest["comments"]] == ["Comment 2", "Comment 1"]
    _, single = await site.ask("GET", f"2/issue/{key}/comment/{newest['comments'][0]['id']}")
    assert single["body"] == "Comment 2"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("3/issue/QP-1/comment", {"body": "not a document"}),
        ("3/issue/QP-1/comment", {"body": {"type": "doc", "version": 1, "content": []}}),
        ("3/issue/QP-1/comment", {"body": {"type": "doc", "version": 1, "content": [{"text": "no type"}]}}),
        ("2/issue/QP-1/comment", {"body": LINES}),
        ("2/issue/QP-1/comment", {}),
        ("3/issue/QP-1/transitions", {"transition": {"id": "99"}}),
        ("3/issue/QP-1/transitions", {"transition": 21}),
        ("3/issue/QP-1/transitions", {}),
        ("3/issue/QP-1/transitions", {"transition": {"id": "21"}, "fields": {"status": "Done"}}),
    ],
)
async def test_a_bad_write_is_refused_and_changes_nothing(site: Site, path: str, body: dict[str, Any]) -> None:
    await site.tickets(1)
    _, before = await site.ask("GET", "3/issue/QP-1")
    status, answer = await site.ask("POST", path, json=body)
    assert status == 400
    assert answer["errorMessages"] or answer["errors"]
    assert (await site.ask("GET", "3/issue/QP-1"))[1] == before
    assert await site.calls() == []


async def test_a_user_unknown_to_jira_is_not_assigned(site: Site) -> None:
    await site.tickets(1)
    status, answer = await site.ask("PUT", "3/issue/QP-1/assignee", json={"accountId": "712020:nobody"})
    assert (status, answer["errors"]) == (400, {"assignee": "User '712020:nobody' does not exist."})


async def test_a_missing_item_is_not_found(site: Site) -> None:
    missing = "Issue does not exist or you do not have permission to see it."
    for path in ("3/issue/QP-404", "3/issue/QP-404/comment", "3/issue/QP-404/transitions"):
        assert await site.ask("GET", path) == (404, {"errorMessages": [missing], "errors": {}})
    assert (await site.ask("GET", "3/nothing"))[0] == 404


async def test_too_many_requests_get_a_time_to_retry(site: Site) -> None:
    await site.faults(kind="refuse", status=429, retry_after=7, path="/rest/api/*/search/jql")
    async with site.session.get(f"{site.url}/rest/api/3/search/jql", params={"jql": "updated >= -1d"}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    assert (await site.search("updated >= -1d"))[0] == 200


@pytest.mark.parametrize(
    ("kind", "trouble"), [("lose_answer", aiohttp.ClientConnectionError), ("truncate", aiohttp.ClientPayloadError)]
)
async def test_a_comment_with_a_lost_response_exists_once(
    site: Site, running: RunningServer, kind: str, trouble: type[Exception]
) -> None:
    (key,) = await site.tickets(1)
    await site.faults(kind=kind, method="POST", path="*/comment")
    with pytest.raises(trouble):
        await site.ask("POST", f"3/issue/{key}/comment", json={"body": LINES})
    _, page = await site.ask("GET", f"3/issue/{key}/comment")
    assert page["total"] == running.application[STATE_FILE].count("POST comment", key=key) == 1


async def test_a_killed_program_continues_with_everything_that_it_had_confirmed(tmp_path: Path) -> None:
    state = tmp_path / "jira.json"
    answered = 0
    async with session() as requests:
        async with program(state) as (url, process):
            site = Site(url, requests)
            (key,) = await site.tickets(1)
            await site.ask("POST", f"3/issue/{key}/transitions", json={"transition": {"id": "31"}})

            async def comment_until_killed() -> None:
                nonlocal answered
                while True:
                    assert (await site.ask("POST", f"3/issue/{key}/comment", json={"body": LINES}))[0] == 201
                    answered += 1
                    if answered == 5:
                        process.send_signal(signal.SIGKILL)

            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(comment_until_killed(), PATIENCE_SECONDS)
        async with program(state) as (url, process):
            site = Site(url, requests)
            _, issue = await site.ask("GET", f"3/issue/{key}")
            assert issue["fields"]["status"]["name"] == "In Review"
            assert issue["fields"]["comment"]["total"] - answered in (0, 1)
            calls = await site.calls()
            assert calls == ["POST transition"] + ["POST comment"] * issue["fields"]["comment"]["total"]
            process.terminate()
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0
