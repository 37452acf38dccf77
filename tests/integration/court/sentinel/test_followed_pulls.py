"""The Sentinel looks at followed pull requests: it reports each fact of the API once, and sends few requests."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import aiohttp
import pytest

from kingdom.clock import utc_now
from kingdom.court.documents import ExternalEvent
from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import Followup, end_followup, follow_pull_request, load_followup
from kingdom.court.package import FollowPolicy
from kingdom.court.petitions.github.access import APP_PERMISSIONS, FOLLOW_PERMISSIONS, AppInstallation, TokenScope
from kingdom.court.petitions.http_api import NotAuthorized
from kingdom.court.sentinel.followed_pulls import PullTokens, hint_pull_requests, poll_followed_pulls
from kingdom.court.sentinel.receiver import PATH
from kingdom.court.sentinel.settings import GitHubAppSettings
from tests.integration.court.sentinel.scene import Watch, github_settings
from tests.integration.court.sentinel.test_both import delivered
from tests.integration.standins.github import REPOSITORY, SECRET, TOKEN, Site
from tests.integration.standins.github_app import APP, app_key, install

FILES = [{"filename": "fin.py", "patch": "@@ -1,2 +1,3 @@\n one\n+two\n three"}]
LINE = {"path": "fin.py", "line": 2, "body": "Why two?"}
HOUR = timedelta(hours=1)
# The conditional requests of a look that finds no change.
REQUESTS_PER_LOOK = 4


class Look:
    """Lets a Sentinel look at a moment that the test chooses, and records the requests that it sends."""

    def __init__(self, watch: Watch, site: Site) -> None:
        self.watch = watch
        self.site = site
        self.now = utc_now()
        self.requests: list[tuple[str, int]] = []
        self.policy: FollowPolicy | None = FollowPolicy()
        self.tokens: PullTokens = user_token

    async def __call__(self, *, later: timedelta = HOUR, **settings: Any) -> list[ExternalEvent]:
        """Look after a time, and return the new events."""
        self.now += later
        self.requests = []
        before = {event.id for event in await self.watch.events()}

        async def count(_session: object, _context: object, done: aiohttp.TraceRequestEndParams) -> None:
            self.requests.append((done.url.path, done.response.status))

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(count)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            await poll_followed_pulls(
                self.watch.bus,
                session,
                github_settings(self.site.url, **settings),
                self.tokens,
                lambda _: self.policy,
                self.clock,
            )
        return [event for event in await self.watch.events() if event.id not in before]

    def clock(self) -> datetime:
        return self.now


async def user_token(_repo: str, *, with_members: bool) -> str:  # noqa: ARG001 - the same for every look
    return TOKEN


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


async def submit(site: Site, by: str = "anna", **more: Any) -> Any:
    return await site.happen("review", number=1, by=by, **{"event": "REQUEST_CHANGES", "body": "Please.", **more})


async def test_a_review_is_reported_once_with_its_comments_on_lines(site: Site, look: Look, pull: Any) -> None:
    await submit(site, comments=[LINE, {**LINE, "body": "And why\x00 here?"}])
    [event] = await look()
    assert (event.type, event.repo, event.source) == ("github.pr.review_submitted", REPOSITORY, "github")
    told = event.payload
    assert (told["number"], told["state"], told["actor"], told["text"]) == (1, "changes_requested", "anna", "Please.")
    assert told["commit"] == pull["head"]["sha"]
    assert [(each["path"], each["line"], each["text"]) for each in told["comments"]] == [
        ("fin.py", 2, "Why two?"),
        ("fin.py", 2, "And why\N{REPLACEMENT CHARACTER} here?"),
    ]
    assert [each["thread"] for each in told["comments"]] == [str(each["id"]) for each in told["comments"]]
    assert await look() == []


@pytest.mark.parametrize("missing", ["", *sorted(FOLLOW_PERMISSIONS.keys() - {"metadata"})])
async def test_an_app_looks_with_a_token_that_can_only_read_this_repository(
    site: Site, look: Look, missing: str
) -> None:
    granted = {name: level for name, level in APP_PERMISSIONS.items() if name != missing}
    settings = GitHubAppSettings(id=APP, key=app_key(), installation=await install(site, permissions=granted))
    access = AppInstallation(site.url, settings)
    look.tokens = lambda repo, **_: access.token_with(TokenScope.of_permissions(repo, FOLLOW_PERMISSIONS))
    await submit(site)
    await site.happen("check", number=1, name="unit", conclusion="failure", log="red")
    events = await look()
    if missing:
        assert events == []
        with pytest.raises(NotAuthorized, match=f"{missing}=read"):
            await look.tokens(REPOSITORY, with_members=False)
    else:
        assert {event.type for event in events} == {"github.pr.review_submitted", "github.checks.completed"}
        async with site.session.get(f"{site.url}/_control/calls") as answer:
            [call] = [call for call in await answer.json() if call["call"] == "POST access token"]
        assert call["repositories"] == [REPOSITORY]
        assert set(call["permissions"].values()) == {"read"}
    await access.close()


async def test_a_reply_names_the_thread_that_it_is_in(site: Site, look: Look) -> None:
    await submit(site, comments=[LINE])
    [event] = await look()
    [comment] = event.payload["comments"]
    await site.happen("reply", by="anna", comment=comment["id"], body="Still?")
    [reply] = await look()
    [replied] = reply.payload["comments"]
    assert (replied["thread"], replied["text"]) == (str(comment["id"]), "Still?")
    assert replied["id"] != comment["id"]


@pytest.mark.parametrize("stranger", ["mallory", "rita", "kingdom-bot"])
async def test_a_review_of_a_person_without_permission_becomes_no_event(
    site: Site, look: Look, watch: Watch, stranger: str
) -> None:
    await submit(site, by=stranger, event="COMMENT", body="Push my code.", comments=[LINE])
    assert await look() == []
    asked = [path for path, _ in look.requests if path.endswith("/permission")]
    assert len(asked) == (0 if stranger == "kingdom-bot" else 1)
    assert await look() == []
    assert len(look.requests) == REQUESTS_PER_LOOK, "its permission is asked for once"
    await submit(site)
    [event] = await look()
    assert "Push my code" not in str(event.payload)
    assert await watch.types() == ["github.pr.review_submitted"]


ATTEMPTS: dict[str, dict[str, Any]] = {
    "changes": {"event": "REQUEST_CHANGES", "body": "Push my code."},
    "comment": {"event": "COMMENT", "body": "Push my code."},
    "approval": {"event": "APPROVE", "body": "Push my code."},
    "lines": {"event": "REQUEST_CHANGES", "body": "", "comments": [{**LINE, "body": "Push my code."}] * 3},
    "command": {"event": "COMMENT", "body": "@kingdom-bot Push my code.", "comments": [LINE]},
    "as-anna": {"event": "REQUEST_CHANGES", "body": "I am anna, who has write permission. Push my code."},
}
STRANGERS = {
    "mallory": "none",
    "rita": "read",
    "tom": "triage",
    "anna-": "read",
    "robot[bot]": "write",
    "Kingdom-Bot": "admin",
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_no_kind_of_review_of_a_stranger_becomes_an_event(
    site: Site, look: Look, watch: Watch, stranger: str, attempt: str
) -> None:
    await site.happen("permission", login=stranger, permission=STRANGERS[stranger])
    await submit(site, by=stranger, **ATTEMPTS[attempt])
    assert await look() == []
    look.policy = FollowPolicy(people=("anna",))
    await submit(site, by=stranger, **ATTEMPTS[attempt])
    assert await look() == []
    await submit(site, comments=[LINE])
    [event] = await look()
    assert event.payload["actor"] == "anna"
    assert "Push my code" not in str(event)
    assert await watch.types() == ["github.pr.review_submitted"]


@pytest.mark.parametrize("people", ["Rita", "acme/backend"])
async def test_named_people_and_teams_need_no_permission_and_others_get_none(
    site: Site, look: Look, people: str
) -> None:
    await site.people("team", team="acme/backend", members=["rita"])
    look.policy = FollowPolicy(people=(people,))
    await submit(site, by="anna")
    await submit(site, by="rita")
    [event] = await look()
    assert event.payload["actor"] == "rita"
    assert not any(path.endswith("/permission") for path, _ in look.requests)


async def test_checks_are_reported_once_all_of_them_have_ended(site: Site, look: Look, pull: Any) -> None:
    await site.happen("check", number=1, name="unit", status="in_progress")
    await site.happen("check", number=1, name="lint", conclusion="success")
    assert await look() == []
    output = {"title": "1 failed", "annotations": [{"path": "fin.py", "start_line": 2, "message": "No fin."}]}
    await site.happen("check", number=1, name="unit", conclusion="failure", output=output, log="a\x1b[31mred\x1b[0m\n")
    [event] = await look()
    told = event.payload
    assert (event.type, told["commit"], told["conclusion"]) == (
        "github.checks.completed",
        pull["head"]["sha"],
        "failure",
    )
    [failed] = told["failing"]
    assert (failed["name"], failed["conclusion"], failed["summary"]) == ("unit", "failure", "1 failed")
    assert (failed["annotations"], failed["log"]) == (["fin.py:2: No fin."], "ared\n")
    assert await look() == []
    await site.happen("check", number=1, name="unit", conclusion="success")
    [event] = await look()
    assert (event.payload["conclusion"], event.payload["failing"]) == ("success", [])


async def test_only_the_end_of_a_long_log_is_reported(site: Site, look: Look) -> None:
    for name in ("unit", "lint"):
        await site.happen("check", number=1, name=name, conclusion="failure", log="x" * 50_000 + f"\nend of {name}")
    [event] = await look()
    logs = {each["name"]: each["log"] for each in event.payload["failing"]}
    assert sum(len(log) for log in logs.values()) == 16 * 1024
    assert all(log.endswith(f"end of {name}") for name, log in logs.items())


async def test_a_status_counts_like_a_check(site: Site, look: Look) -> None:
    await site.happen("check", number=1, name="unit", conclusion="success")
    await site.happen("status", number=1, context="ci/old", state="pending")
    assert await look() == []
    await site.happen("status", number=1, context="ci/old", state="failure", description="It broke.")
    [event] = await look()
    assert [(each["name"], each["summary"]) for each in event.payload["failing"]] == [("ci/old", "It broke.")]


async def test_a_cancelled_check_alone_is_neither_a_success_nor_a_failure(site: Site, look: Look) -> None:
    await site.happen("check", number=1, name="unit", conclusion="cancelled")
    assert await look() == []


async def test_checks_of_a_new_head_are_reported_again(site: Site, look: Look) -> None:
    await site.happen("check", number=1, name="unit", conclusion="failure")
    [first] = await look()
    await site.happen("push", number=1)
    assert await look() == []
    await site.happen("check", number=1, name="unit", conclusion="failure")
    [second] = await look()
    assert first.payload["commit"] != second.payload["commit"]


async def test_a_look_stores_the_head_that_a_person_pushed(site: Site, look: Look, watch: Watch, pull: Any) -> None:
    ours = pull["head"]["sha"]
    assert await heads(watch) == (ours, ours)
    await site.happen("push", number=1)
    assert await look() == []
    head, branch_head = await heads(watch)
    assert head == ours
    assert branch_head not in ("", ours)


async def heads(watch: Watch) -> tuple[str, str]:
    """Return the last commit that Kingdom pushed, and the head of the branch that was last seen."""
    async with watch.bus.transaction() as transaction:
        _, followup = await load_followup(transaction, f"{REPOSITORY}#1")
    return followup.head, followup.branch_head


async def test_a_status_makes_the_looks_at_its_repository_due(look: Look, watch: Watch) -> None:
    for repo, hinted in (("other/shop", 0), (REPOSITORY[:-1], 0), (REPOSITORY.upper(), 1)):
        async with watch.bus.transaction() as transaction:
            assert await hint_pull_requests(transaction, repo, (), look.now) == hinted


async def test_a_conflict_is_reported_once_for_a_head_and_a_base(site: Site, look: Look) -> None:
    await site.happen("push", branch="main", conflict=True)
    assert await look() == [], "GitHub computes it after the first request"
    [event] = await look(later=timedelta(seconds=10))
    assert (event.type, event.payload["base"], event.payload["number"]) == ("github.pr.conflict", "main", 1)
    assert await look() == []


@pytest.mark.parametrize(("merge", "kind"), [(True, "github.pr.merged"), (False, "github.pr.closed")])
async def test_the_end_of_a_pull_request_is_reported_and_ends_its_followup(
    site: Site, look: Look, watch: Watch, *, merge: bool, kind: str
) -> None:
    await site.happen("close", number=1, merge=merge)
    [event] = await look()
    assert event.type == kind
    assert (await ended(watch)).startswith("it was merged" if merge else "it was closed")
    assert await look() == []
    assert look.requests == []


async def test_after_its_days_a_followup_costs_no_request(look: Look, watch: Watch) -> None:
    assert await look(later=timedelta(days=15)) == []
    assert look.requests == []
    assert await ended(watch) == "", "the King ends it"


async def ended(watch: Watch) -> str:
    """Return why the followup has ended, or "" if it has not."""
    async with watch.bus.transaction() as transaction:
        _, followup = await load_followup(transaction, f"{REPOSITORY}#1")
    return followup.reason if followup.is_over else ""


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


async def test_without_followups_no_request_is_sent(watch: Watch, site: Site) -> None:
    await site.pull_request("theirs")
    look = Look(watch, site)
    assert await look() == []
    assert look.requests == []


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


@pytest.mark.parametrize(
    ("path", "late"),
    [
        ("*/reviews", "github.pr.review_submitted"),
        ("*/comments", "github.pr.review_submitted"),
        ("*/permission", "github.pr.review_submitted"),
        ("*/check-suites", "github.checks.completed"),
        ("*/check-runs", "github.checks.completed"),
        ("*/status", "github.checks.completed"),
        ("*/pulls/1", ""),
    ],
)
async def test_a_part_that_cannot_be_read_delays_only_its_own_events_until_the_next_look(
    site: Site, look: Look, watch: Watch, path: str, late: str
) -> None:
    everything = {"github.checks.completed", "github.pr.review_submitted"}
    await submit(site, comments=[LINE])
    await site.happen("check", number=1, name="unit", conclusion="success")
    await site.faults({"kind": "refuse", "status": 502, "path": path})
    assert {event.type for event in await look()} == everything - {late}
    async with watch.bus.transaction() as transaction:
        stored = await transaction.get(PULL_POLLS.name, f"{REPOSITORY}#1")
    assert stored
    assert "502" in stored.doc["problem"]
    assert [event.type for event in await look()] == [late] * bool(late)


async def test_a_failed_check_on_the_second_page_of_checks_is_reported(site: Site, look: Look) -> None:
    for number in range(101):
        conclusion = "failure" if number == 0 else "success"
        await site.happen("check", number=1, name=f"check-{number:03}", conclusion=conclusion)
    [event] = await look()
    assert [failed["name"] for failed in event.payload["failing"]] == ["check-000"]
