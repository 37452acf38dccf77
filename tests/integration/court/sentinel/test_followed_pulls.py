"""The Sentinel looks at followed pull requests: it reports each fact of the API once, and sends few requests."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import load_followup, save_followup
from kingdom.court.package import FollowPolicy
from kingdom.court.petitions.github.access import APP_PERMISSIONS, FOLLOW_PERMISSIONS, AppInstallation, TokenScope
from kingdom.court.petitions.http_api import NotAuthorized
from kingdom.court.sentinel.settings import GitHubAppSettings
from kingdom.errors import Transient
from tests.integration.court.sentinel.polls import LINE, REQUESTS_PER_LOOK, Look, end_of, submit
from tests.integration.court.sentinel.scene import Watch
from tests.integration.standins.github import REPOSITORY, Site
from tests.integration.standins.github_app import APP, app_key, install


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


async def remember_tests(watch: Watch, **tests: int) -> None:
    """Store how many tests the failed checks ran before the last round."""
    async with watch.bus.transaction() as transaction:
        record, followup = await load_followup(transaction, f"{REPOSITORY}#1")
        await save_followup(transaction, msgspec.structs.replace(followup, tests=tests), record)


async def test_the_tests_of_failed_and_of_repaired_checks_are_counted(site: Site, look: Look, watch: Watch) -> None:
    await site.happen("check", number=1, name="unit", conclusion="failure", log="= 1 failed, 40 passed in 2.10s =\n")
    await site.happen("check", number=1, name="lint", conclusion="success", log="= 3 passed in 0.10s =\n")
    [event] = await look()
    assert event.payload["tests"] == {"unit": 41}
    assert sum(path.endswith("/logs") for path, _ in look.requests) == 1, "only logs that are needed are read"
    await remember_tests(watch, unit=41)
    await site.happen("check", number=1, name="unit", conclusion="success", log="= 40 passed in 2.00s =\n")
    [event] = await look()
    assert (event.payload["conclusion"], event.payload["tests"]) == ("success", {"unit": 40})
    assert sum(path.endswith("/logs") for path, _ in look.requests) == 1


@pytest.mark.parametrize("log", ["", "All is well.\n"])
async def test_a_repaired_check_whose_log_shows_no_tests_any_more_ran_none(
    site: Site, look: Look, watch: Watch, log: str
) -> None:
    await remember_tests(watch, unit=41)
    await site.happen("check", number=1, name="unit", conclusion="success", log=log)
    [event] = await look()
    assert event.payload["tests"] == ({"unit": 0} if log else {})


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 502, "path": "*/jobs/*/logs"},
        {"status": 502, "path": "/_logs/*"},
        {"status": 429, "path": "*/jobs/*/logs"},
    ],
)
async def test_checks_are_reported_later_if_the_log_of_a_repaired_check_cannot_be_read(
    site: Site, look: Look, watch: Watch, fault: dict[str, Any]
) -> None:
    await remember_tests(watch, unit=41)
    await site.happen("check", number=1, name="unit", conclusion="success", log="= 41 passed in 2.00s =\n")
    await site.faults({"kind": "refuse", **fault})
    assert await look() == []
    [event] = await look()
    assert event.payload["tests"] == {"unit": 41}


async def test_a_limit_on_the_rate_of_requests_is_not_a_log_that_is_gone(site: Site, look: Look, watch: Watch) -> None:
    await remember_tests(watch, unit=41)
    await site.happen("check", number=1, name="unit", conclusion="success", log="= 41 passed in 2.00s =\n")
    await site.faults({"kind": "refuse", "status": 403, "path": "*/jobs/*/logs", "retry_after": 60})
    with pytest.raises(Transient):
        await look()
    [event] = await look()
    assert event.payload["tests"] == {"unit": 41}


@pytest.mark.parametrize("path", ["*/jobs/*/logs", "/_logs/*"])
async def test_checks_are_reported_without_a_log_that_is_gone(site: Site, look: Look, watch: Watch, path: str) -> None:
    await remember_tests(watch, unit=41)
    await site.happen("check", number=1, name="unit", conclusion="success", log="= 41 passed in 2.00s =\n")
    await site.faults({"kind": "refuse", "status": 410, "path": path})
    [event] = await look()
    assert (event.payload["conclusion"], event.payload["tests"]) == ("success", {})


async def test_a_status_counts_like_a_check(site: Site, look: Look) -> None:
    await site.happen("check", number=1, name="unit", conclusion="success")
    await site.happen("status", number=1, context="ci/old", state="pending")
    assert await look() == []
    await site.happen("status", number=1, context="ci/old", state="failure", description="It broke.")
    [event] = await look()
    assert [(each["name"], each["summary"]) for each in event.payload["failing"]] == [("ci/old", "It broke.")]


@pytest.mark.parametrize("conclusion", ["cancelled", "timed_out"])
async def test_a_check_that_did_not_end_is_named_with_what_running_it_again_needs(
    site: Site, look: Look, conclusion: str
) -> None:
    await site.happen("check", number=1, name="lint", conclusion="failure")
    await site.happen("check", number=1, name="unit", conclusion=conclusion)
    [event] = await look()
    assert sorted(each["conclusion"] for each in event.payload["failing"]) == sorted([conclusion, "failure"])
    [interrupted] = event.payload["interrupted"]
    assert (interrupted["name"], interrupted["is_job"]) == ("unit", True)
    assert interrupted["id"] != interrupted["suite"]


async def test_a_check_that_waits_for_a_person_is_neither_a_success_nor_a_failure(site: Site, look: Look) -> None:
    await site.happen("check", number=1, name="unit", conclusion="action_required")
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
    assert (await end_of(watch)).startswith("it was merged" if merge else "it was closed")
    assert await look() == []
    assert look.requests == []


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
