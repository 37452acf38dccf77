"""The stand-in for GitHub, as the official client and plain requests see it."""

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from github import Auth, Github, GithubException, RateLimitExceededException, UnknownObjectException
from github.GithubException import BadCredentialsException

from tests.integration.standins.github import REPOSITORY, Site, standing_in

PULLS = f"/repos/{REPOSITORY}/pulls"
ISSUES = f"/repos/{REPOSITORY}/issues"
US = "kingdom-bot"


def at(minute: int) -> str:
    return f"2026-11-15T10:{minute:02d}:00Z"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        yield site


async def threads(site: Site, **parameters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await site.read("/notifications", params=parameters)
    return found


async def test_a_review_request_becomes_a_notification_for_the_official_client(site: Site) -> None:
    await site.pull_request(by="alice", reviewers=[US], at=at(0))

    def look(client: Github) -> list[Any]:
        (reported,) = client.get_user().get_notifications()
        pull = reported.get_pull_request()
        repository, updated = reported.repository.full_name, reported.updated_at.isoformat()
        reviewers = [each.login for each in pull.requested_reviewers]
        return [
            reported.reason,
            reported.subject.type,
            reported.unread,
            repository,
            updated,
            pull.title,
            pull.user.login,
            reviewers,
        ]

    seen = await site.official(look)
    updated = "2026-11-15T10:00:00+00:00"
    assert seen == ["review_requested", "PullRequest", True, REPOSITORY, updated, "Add feature", "alice", [US]]


async def test_a_thread_keeps_its_id_when_its_pull_request_changes(site: Site) -> None:
    await site.pull_request(reviewers=[US], at=at(0))
    before = (await threads(site))[0]
    doings: list[tuple[str, dict[str, Any]]] = [
        ("push", {}),
        ("comment", {"body": f"@{US} what now?"}),
        ("review_request", {}),
        ("review", {"by": "bob", "body": "Hm."}),
        ("close", {"merge": True}),
    ]
    seen = []
    for minute, (what, doing) in enumerate(doings, start=1):
        await site.happen(what, number=1, at=at(minute), **doing)
        seen.append((await threads(site))[0])
    assert {thread["id"] for thread in seen} == {before["id"]}
    assert [thread["updated_at"] for thread in seen] == [at(minute) for minute in range(1, 6)]
    reasons = ["review_requested", "mention", "review_requested", "review_requested", "review_requested"]
    assert [thread["reason"] for thread in seen] == reasons
    latest = [thread["subject"]["latest_comment_url"] for thread in seen]
    assert latest[0] == f"{site.url}{PULLS}/1"
    assert f"{site.url}{ISSUES}/comments/" in latest[1]
    assert latest[3] is None


async def test_only_activity_that_concerns_our_user_is_reported(site: Site) -> None:
    await site.pull_request("others", reviewers=["bob"])
    await site.happen("comment", number=1, body=f"mail@{US} and @{US}-two are somebody else")
    await site.happen("issue", title="Slow", assignees=["bob"])
    assert await threads(site) == []
    await site.happen("assign", number=2)
    await site.happen("comment", number=1, body=f"Hello @{US}!", reason="team_mention")
    assert {thread["reason"] for thread in await threads(site)} == {"assign", "team_mention"}
    assert {thread["subject"]["type"] for thread in await threads(site)} == {"Issue", "PullRequest"}


async def test_activity_of_our_user_is_no_notification_but_subscribes_the_user(site: Site) -> None:
    await site.happen("issue", title="Slow")
    await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Looking."})
    assert await threads(site) == []
    await site.happen("comment", number=1, body="Thanks.")
    assert [thread["reason"] for thread in await threads(site)] == ["comment"]


async def test_notifications_are_filtered_by_time_read_state_and_participation(site: Site) -> None:
    for number in range(1, 4):
        await site.happen("issue", title=f"Issue {number}", assignees=[US], at=at(number))
    await site.happen("issue", title="Watched", reason="subscribed", at=at(4))
    newest_first = await threads(site)
    assert [thread["updated_at"] for thread in newest_first] == [at(4), at(3), at(2), at(1)]
    assert [thread["updated_at"] for thread in await threads(site, since=at(2), before=at(4))] == [at(3), at(2)]
    assert len(await threads(site, participating="true")) == 3
    assert (await site.ask("PATCH", f"/notifications/threads/{newest_first[1]['id']}")).status == 205
    assert [thread["updated_at"] for thread in await threads(site)] == [at(4), at(2), at(1)]
    assert len(await threads(site, all="true")) == 4
    await site.happen("comment", number=3, body="Again.", at=at(5))
    again = (await threads(site))[0]
    assert (again["unread"], again["id"], again["last_read_at"] is None) == (True, newest_first[1]["id"], False)


async def test_an_unchanged_list_is_not_sent_again_and_a_change_returns_the_complete_list(site: Site) -> None:
    await site.pull_request(reviewers=[US], at=at(0))
    first = await site.ask("GET", "/notifications")
    assert first.headers["X-Poll-Interval"] == "60"
    assert first.headers["Last-Modified"] == "Sun, 15 Nov 2026 10:00:00 GMT"
    conditions = [
        {"If-None-Match": first.headers["ETag"]},
        {"If-Modified-Since": first.headers["Last-Modified"]},
        {"If-None-Match": first.headers["ETag"], "If-Modified-Since": "Sun, 15 Nov 2020 10:00:00 GMT"},
    ]
    for condition in conditions:
        unchanged = await site.ask("GET", "/notifications", headers=condition)
        assert unchanged.status == 304
        assert unchanged.headers["X-RateLimit-Remaining"] == first.headers["X-RateLimit-Remaining"]
        assert unchanged.headers["X-Poll-Interval"] == "60"
    await site.happen("push", number=1, at=at(1))
    await site.people("limits", poll_interval=120)
    for condition in conditions:
        changed = await site.ask("GET", "/notifications", headers=condition)
        assert (changed.status, len(await changed.json()), changed.headers["X-Poll-Interval"]) == (200, 1, "120")


async def test_the_official_client_can_ask_conditionally(site: Site) -> None:
    await site.pull_request(reviewers=[US])

    def ask(client: Github) -> tuple[int, int]:
        status, headers, _ = client.requester.requestJson("GET", "/notifications")
        again, _, _ = client.requester.requestJson("GET", "/notifications", headers={"If-None-Match": headers["etag"]})
        return status, again

    assert await site.official(ask) == (200, 304)


async def test_pages_are_linked_and_hold_at_most_fifty_notifications(site: Site) -> None:
    for number in range(55):
        await site.happen("issue", title=f"Issue {number}", assignees=[US])
    first = await site.ask("GET", "/notifications?per_page=100")
    assert len(await first.json()) == 50
    assert first.links["next"]["url"] == first.links["last"]["url"]
    last = await site.ask("GET", str(first.links["next"]["url"]))
    assert (len(await last.json()), sorted(last.links)) == (5, ["first", "prev"])
    titles = await site.official(lambda client: [each.title for each in client.get_repo(REPOSITORY).get_issues()])
    assert titles == [f"Issue {number}" for number in reversed(range(55))]


async def test_the_official_client_reads_the_reviews_and_comments_that_it_wrote(site: Site) -> None:
    await site.pull_request(by="alice", reviewers=[US], files=[{"filename": "a.py", "additions": 3}])

    def work(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        remark: Any = {"path": "a.py", "line": 2, "body": "Why?"}
        review = pull.create_review(body="Needs work.", event="REQUEST_CHANGES", comments=[remark])
        comment = pull.create_issue_comment("Done reviewing.")
        again = client.get_repo(REPOSITORY).get_pull(1)
        return [
            review.state,
            [each.body for each in again.get_reviews()],
            [(each.path, each.line, each.body) for each in again.get_review_comments()],
            [each.body for each in again.get_issue_comments()],
            again.get_issue_comment(comment.id).user.login,
            [file.filename for file in again.get_files()],
            again.requested_reviewers,
            (again.comments, again.review_comments, again.additions),
        ]

    assert await site.official(work) == [
        "CHANGES_REQUESTED",
        ["Needs work."],
        [("a.py", 2, "Why?")],
        ["Done reviewing."],
        US,
        ["a.py"],
        [],
        (1, 1, 3),
    ]
    assert await site.calls() == ["POST review", "POST issue comment"]


async def test_the_official_client_opens_and_finds_a_pull_request_only_once(site: Site) -> None:
    await site.happen("repository", private=True)

    def work(client: Github) -> list[Any]:
        repository = client.get_repo(REPOSITORY)
        made = repository.create_pull(title="Fix", body="It works.", head="fix", base="main")
        made.create_review_request(reviewers=["alice"])
        made.add_to_labels("bug")
        found = [each.number for each in repository.get_pulls(state="open", head="acme:fix", base="main")]
        none = list(repository.get_pulls(head="acme:other"))
        with pytest.raises(GithubException) as refused:
            repository.create_pull(title="Fix", body="", head="fix", base="main")
        made.edit(state="closed")
        issue = repository.create_issue("Slow", body="Very.", labels=["bug"], assignee="alice")
        asked = [user.login for user in made.get_review_requests()[0]]
        made.delete_review_request(reviewers=asked)
        asked += [user.login for user in made.get_review_requests()[0]]
        issue.add_to_assignees("bob")
        assert [each.login for each in repository.get_issue(2).assignees] == ["alice", "bob"]
        return [
            repository.private,
            found,
            none,
            refused.value.status,
            refused.value.data["errors"],
            asked,
            issue.number,
        ]

    private, found, none, status, errors, asked, number = await site.official(work)
    assert (private, found, none, asked, number) == (True, [1], [], ["alice"], 2)
    assert (status, errors[0]["message"]) == (422, "A pull request already exists for acme:fix.")
    assert await site.calls() == [
        "POST pull request",
        "POST requested reviewers",
        "POST issue labels",
        "PATCH pull request",
        "POST issue",
        "DELETE requested reviewers",
        "POST issue assignees",
    ]


async def test_comments_are_paged_and_can_be_asked_for_since_a_time(site: Site) -> None:
    await site.happen("issue", title="Slow")
    for minute in range(5):
        await site.happen("comment", number=1, body=f"Comment {minute}", at=at(minute))
    page = await site.ask("GET", f"{ISSUES}/1/comments", params={"since": at(1), "per_page": 3})
    assert [each["body"] for each in await page.json()] == ["Comment 1", "Comment 2", "Comment 3"]
    rest = await site.read(str(page.links["next"]["url"]))
    assert [each["body"] for each in rest] == ["Comment 4"]


async def test_the_official_client_marks_notifications_as_read(site: Site) -> None:
    for number in range(1, 4):
        await site.happen("issue", title=f"Issue {number}", assignees=[US], at=at(number))

    def mark(client: Github) -> list[str]:
        user = client.get_user()
        user.get_notifications()[0].mark_as_read()
        user.mark_notifications_as_read(datetime.fromisoformat(at(1)))
        return [reported.subject.title for reported in user.get_notifications()]

    assert await site.official(mark) == ["Issue 2"]
    assert await site.calls() == ["PATCH notification thread", "PUT notifications"]


async def test_a_review_without_a_verdict_is_pending_until_it_is_submitted(site: Site) -> None:
    await site.pull_request()
    draft = await (await site.ask("POST", f"{PULLS}/1/reviews", json={"body": "So far"})).json()
    assert (draft["state"], "submitted_at" in draft) == ("PENDING", False)
    done = await site.ask("POST", f"{PULLS}/1/reviews/{draft['id']}/events", json={"event": "APPROVE"})
    assert (await done.json())["state"] == "APPROVED"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/repos/acme/nothing", None, 404, "Not Found"),
        ("GET", f"{PULLS}/9", None, 404, "Not Found"),
        ("GET", f"{PULLS}/2", None, 404, "Not Found"),
        ("GET", "/nowhere", None, 404, "Not Found"),
        ("POST", ISSUES, {"body": "no title"}, 422, "Validation Failed"),
        ("POST", f"{ISSUES}/1/comments", {"body": " "}, 422, "Validation Failed"),
        ("POST", PULLS, {"title": "x", "head": "main", "base": "main"}, 422, "Validation Failed"),
        ("POST", f"{PULLS}/1/reviews", {"event": "COMMENT"}, 422, "Unprocessable Entity"),
        ("POST", f"{PULLS}/1/reviews", {"event": "LIKE"}, 422, "Invalid request."),
        ("POST", f"{PULLS}/1/requested_reviewers", {"reviewers": ["octocat"]}, 422, "Review cannot be requested"),
    ],
)
async def test_an_impossible_request_is_refused_with_the_message_of_github(
    site: Site, method: str, path: str, body: Any, status: int, message: str
) -> None:
    await site.pull_request()
    await site.happen("issue", title="Second")
    refused = await site.ask(method, path, json=body)
    assert refused.status == status
    body = await refused.json()
    assert body["message"].startswith(message)
    assert body["status"] == str(status)
    assert await site.calls() == []


async def test_an_author_cannot_approve_their_own_pull_request(site: Site) -> None:
    await site.happen("repository")
    await site.ask("POST", PULLS, json={"title": "Mine", "head": "mine", "base": "main"})
    refused = await site.ask("POST", f"{PULLS}/1/reviews", json={"event": "APPROVE"})
    assert (refused.status, (await refused.json())["errors"]) == (422, ["Can not approve your own pull request"])
    assert await site.read(f"{PULLS}/1/reviews") == []


async def test_a_request_without_a_valid_token_is_refused(site: Site) -> None:
    for scheme, status in [("token github-token", 200), ("Bearer github-token", 200), ("Bearer wrong", 401)]:
        assert (await site.ask("GET", "/user", headers={"Authorization": scheme})).status == status
    async with site.session.get(f"{site.url}/user") as answer:
        assert (answer.status, (await answer.json())["message"]) == (401, "Requires authentication")

    def ask(client: Github) -> None:
        with pytest.raises(BadCredentialsException):
            client.get_user().get_notifications()[0]

    await site.official(ask, auth=Auth.Token("wrong"))


async def test_the_official_client_recognizes_a_missing_item(site: Site) -> None:
    def ask(client: Github) -> None:
        with pytest.raises(UnknownObjectException):
            client.get_repo("acme/nothing")

    await site.official(ask)


async def test_an_exhausted_limit_refuses_until_its_reset(site: Site) -> None:
    await site.people("limits", remaining=1)
    allowed = await site.ask("GET", "/user")
    assert (allowed.status, allowed.headers["X-RateLimit-Remaining"]) == (200, "0")
    for status in (403, 429):
        await site.people("limits", status=status)
        refused = await site.ask("GET", "/user")
        assert (refused.status, refused.headers["X-RateLimit-Remaining"]) == (status, "0")
        assert (await refused.json())["message"].startswith("API rate limit exceeded")
        assert refused.headers["X-RateLimit-Reset"] == allowed.headers["X-RateLimit-Reset"]
    await site.people("limits", status=403)

    def ask(client: Github) -> int:
        with pytest.raises(RateLimitExceededException):
            client.get_repo(REPOSITORY)
        return client.get_rate_limit().rate.remaining

    assert await site.official(ask) == 0
    await site.people("limits", reset_seconds=0)
    assert (await site.ask("GET", "/user")).headers["X-RateLimit-Used"] == "1"


async def test_a_secondary_limit_says_how_long_to_wait(site: Site) -> None:
    await site.happen("issue", title="Slow")
    await site.people("limits", secondary={"times": 2, "retry_after": 7, "method": "POST"})
    assert (await site.ask("GET", f"{ISSUES}/1")).status == 200
    for status, wait in [(403, "7"), (403, "7"), (201, None)]:
        answer = await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Hm."})
        assert (answer.status, answer.headers.get("Retry-After")) == (status, wait)
    assert await site.calls() == ["POST issue comment"]
