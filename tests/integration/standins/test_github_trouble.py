"""The webhooks of the stand-in for GitHub, its injected faults, and its crash."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from github import Github

from tests.integration.standins.github import (
    REPOSITORY,
    SECRET,
    Receiver,
    Site,
    receiving,
    standing_in,
)
from tests.patience import PATIENCE_SECONDS

ISSUES = f"/repos/{REPOSITORY}/issues"
US = "kingdom-bot"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        yield site


@pytest.fixture
async def receiver(site: Site) -> AsyncIterator[Receiver]:
    """A registered receiver that has got its ping."""
    async with receiving() as receiver:
        await site.happen("hook", url=receiver.url, secret=SECRET)
        await receiver.wait_for(1)
        yield receiver


async def failed_deliveries(site: Site, hook: int) -> list[dict[str, Any]]:
    """Wait until no delivery is in flight, and return the failed ones."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await site.read(f"/repos/{REPOSITORY}/hooks/{hook}/deliveries")
            if all(each["status"] != "pending" for each in found):
                return [each for each in found if each["status"] != "OK"]
            await asyncio.sleep(0.02)


async def test_webhooks_are_signed_and_name_actor_action_and_target(site: Site, receiver: Receiver) -> None:
    await site.pull_request(by="alice", reviewers=[US])
    await site.happen("push", number=1, by="alice", sha="f" * 40)
    await site.happen("comment", number=1, by="bob", body="Nice.")
    review = {"event": "APPROVE", "comments": [{"path": "a.py", "line": 1, "body": "Fine."}]}
    await site.ask("POST", f"/repos/{REPOSITORY}/pulls/1/reviews", json=review)
    await site.happen("close", number=1, by="alice", merge=True)
    await site.happen("issue", title="Slow", assignees=["bob"])
    names = [
        "ping",
        "pull_request.opened",
        "pull_request.review_requested",
        "push",
        "pull_request.synchronize",
        "issue_comment.created",
        "pull_request_review.submitted",
        "pull_request_review_comment.created",
        "pull_request.closed",
        "push",
        "issues.opened",
        "issues.assigned",
    ]
    assert await receiver.wait_for(12) == names
    payloads = {name: payload for _, name, payload in receiver.got}
    assert payloads["pull_request.review_requested"]["requested_reviewer"]["login"] == US
    assert payloads["pull_request.synchronize"]["after"] == "f" * 40
    assert payloads["issue_comment.created"]["comment"]["body"] == "Nice."
    assert payloads["pull_request_review.submitted"]["review"]["state"] == "approved"
    assert payloads["pull_request.closed"]["pull_request"]["merged"] is True
    senders = [payload["sender"]["login"] for _, _, payload in receiver.got]
    assert senders == ["octocat", *["alice"] * 4, "bob", US, US, "alice", "alice", "octocat", "octocat"]
    assert {payload["repository"]["full_name"] for _, _, payload in receiver.got} == {REPOSITORY}
    assert receiver.headers[1]["User-Agent"].startswith("GitHub-Hookshot/")
    assert len({delivery for delivery, _, _ in receiver.got}) == 12


async def test_the_official_client_registers_a_webhook_for_some_events(site: Site) -> None:
    await site.happen("repository")
    async with receiving() as receiver:
        config = {"url": receiver.url, "secret": SECRET}

        def register(client: Github) -> tuple[int, list[int], str]:
            repository = client.get_repo(REPOSITORY)
            hook = repository.create_hook("web", config, events=["issues"])
            return hook.id, [each.id for each in repository.get_hooks()], hook.config["secret"]

        number, known, secret = await site.official(register)
        await site.pull_request()
        await site.happen("issue", title="Slow")
        assert await receiver.wait_for(2) == ["ping", "issues.opened"]
        assert receiver.headers[1]["X-GitHub-Hook-ID"] == str(number)
        assert receiver.headers[1]["Content-Type"] == "application/x-www-form-urlencoded"
        assert (known, secret) == ([number], "*" * 8)
        taken = await site.ask("POST", f"/repos/{REPOSITORY}/hooks", json={"config": config})
        assert taken.status == 422


async def test_a_failed_webhook_is_delivered_again_only_on_request_and_under_the_same_identifier(
    site: Site, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    await site.happen("issue", title="Slow")
    await receiver.wait_for(2)
    hook = int(receiver.headers[1]["X-GitHub-Hook-ID"])
    (failed,) = await failed_deliveries(site, hook)
    assert failed["status_code"] == 503
    path = f"/repos/{REPOSITORY}/hooks/{hook}/deliveries/{failed['id']}"
    kept = await site.read(path)
    assert (await site.ask("POST", f"{path}/attempts")).status == 202
    assert await receiver.wait_for(3) == ["ping", "issues.opened", "issues.opened"]
    assert receiver.got[1] == receiver.got[2]
    assert (kept["request"]["payload"], "body" in kept) == (receiver.got[2][2], False)
    assert [each["guid"] for each in await failed_deliveries(site, hook)] == [failed["guid"]]


async def test_webhooks_can_be_repeated_reordered_and_lost(site: Site, receiver: Receiver) -> None:
    await site.faults(
        {"kind": "repeat", "method": "PUSH", "path": "issues.opened"},
        {"kind": "reorder", "method": "PUSH", "path": "issue_comment.created"},
        {"kind": "refuse", "method": "PUSH", "path": "issues.closed"},
    )
    await site.happen("issue", title="Slow")
    await site.happen("comment", number=1, body="First.")
    await site.happen("close", number=1)
    await site.happen("reopen", number=1)
    names = ["ping", "issues.opened", "issues.opened", "issues.reopened", "issue_comment.created"]
    assert await receiver.wait_for(5) == names
    assert receiver.got[1] == receiver.got[2]
    (lost,) = await failed_deliveries(site, int(receiver.headers[0]["X-GitHub-Hook-ID"]))
    assert (lost["event"], lost["action"]) == ("issues", "closed")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_refused_action_is_not_performed(site: Site, status: int) -> None:
    await site.happen("issue", title="Slow")
    await site.faults({"kind": "refuse", "method": "POST", "path": "*/comments", "status": status, "retry_after": 3})
    refused = await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Hm."})
    assert (refused.status, refused.headers["Retry-After"]) == (status, "3")
    assert await site.read(f"{ISSUES}/1/comments") == []
    assert (await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Hm."})).status == 201


@pytest.mark.parametrize("kind", ["lose_answer", "truncate"])
async def test_a_response_can_be_lost_after_the_request_took_effect(site: Site, kind: str) -> None:
    await site.happen("issue", title="Slow")
    await site.faults({"kind": kind, "method": "POST", "path": "*/comments"})
    with pytest.raises(aiohttp.ClientError):
        await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Hm."})
    assert [each["body"] for each in await site.read(f"{ISSUES}/1/comments")] == ["Hm."]
    assert await site.calls() == ["POST issue comment"]


@asynccontextmanager
async def program(
    state: Path, session: aiohttp.ClientSession
) -> AsyncIterator[tuple[Site, asyncio.subprocess.Process]]:
    """Run the stand-in as a program, which is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kingdom.standins.github", "--state", str(state)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS)
        yield Site(json.loads(line)["url"], session), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a_killed_program_continues_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "github.json"
    async with aiohttp.ClientSession() as session, receiving() as receiver:
        async with program(state, session) as (site, process):
            await site.people("hook", url=receiver.url, secret=SECRET)
            await site.pull_request(reviewers=[US], at="2026-11-15T10:00:00Z")
            await site.ask("POST", f"{ISSUES}/1/comments", json={"body": "Looking."})
            await receiver.wait_for(4)
            assert await failed_deliveries(site, int(receiver.headers[0]["X-GitHub-Hook-ID"])) == []
            before = await site.read("/notifications")
        assert process.returncode == -signal.SIGKILL
        async with program(state, session) as (site, _):
            (thread,) = await site.read("/notifications")
            assert (thread["id"], thread["updated_at"]) == (before[0]["id"], before[0]["updated_at"])
            assert [each["body"] for each in await site.read(f"{ISSUES}/1/comments")] == ["Looking."]
            assert await site.calls() == ["POST issue comment"]
            await site.pull_request("other")
            assert [each["number"] for each in await site.read(ISSUES)] == [2, 1]
            assert (await receiver.wait_for(5))[4:] == ["pull_request.opened"]


async def test_a_webhook_that_was_not_sent_before_a_stop_is_sent_after_it(tmp_path: Path) -> None:
    state = tmp_path / "github.json"
    async with receiving() as receiver:
        async with standing_in(state) as site:
            await site.people("hook", url=receiver.url, secret=SECRET)
            await receiver.wait_for(1)
            await site.faults({"kind": "delay", "method": "PUSH", "path": "issues.opened", "seconds": 3600})
            await site.happen("issue", title="Slow")
        kept = json.loads(state.read_bytes())
        kept["state"]["outbox"][0]["delay"] = 0
        state.write_text(json.dumps(kept))
        async with standing_in(state):
            assert await receiver.wait_for(2) == ["ping", "issues.opened"]


async def test_an_invalid_control_request_of_a_test_is_refused_and_changes_nothing(site: Site) -> None:
    mistakes: list[tuple[str, dict[str, Any]]] = [
        ("comment", {"number": 9, "body": "Hm."}),
        ("issue", {"titel": "Slow"}),
    ]
    for what, doing in mistakes:
        body = {"repository": REPOSITORY, **doing}
        async with site.session.post(f"{site.url}/_control/{what}", json=body) as answer:
            assert answer.status in (404, 422)
    assert (await site.ask("GET", f"/repos/{REPOSITORY}")).status == 404
