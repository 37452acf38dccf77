"""A ticket becomes a pull request, which is followed until it is merged: every role is a process, and git is real."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench.court.court_processes import ROLES
from bench.court.until_merged import (
    ANSWERS,
    COST,
    GIT_ID,
    MERGED_TEXT,
    REPO,
    REVIEWER,
    SUMMARY,
    TEXT,
    FollowedPull,
    open_pull,
    prepare_github,
    write_general,
)
from kingdom.workflow.model.run.work import session_of, soldier_of
from tests.acceptance.court.court import Court
from tests.acceptance.court.opening import empty_court
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def court(followed_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Court]:
    async with empty_court(tmp_path_factory.mktemp("followed"), followed_url) as court:
        processes = court.processes
        source = str(processes.source)
        await processes.kingdom("git", "create", GIT_ID, source, "--repo", REPO, "--checkpoint-remote", source)
        await prepare_github(processes)
        processes.write_settings(write_general(processes))
        await asyncio.gather(*(processes.start(name) for name in ROLES))
        yield court


async def opened(court: Court, summary: str) -> FollowedPull:
    return await open_pull(court.processes, court.bus, summary, PATIENCE_SECONDS)


async def test_a_ticket_is_followed_until_its_pull_request_is_merged(court: Court) -> None:
    pull = await opened(court, "Write a text")
    first = await pull.followup()
    assert pull.show("text", first.head) == TEXT.strip()

    await pull.cancel_check()
    task = await pull.fail_check()
    fixed = await pull.followup()
    assert pull.show("check", fixed.head) == task.payload["title"]
    assert pull.git("rev-parse", first.branch) == fixed.head

    foreign = await pull.push_foreign_commit()
    await pull.request_changes()
    reviewed = await pull.followup()
    assert pull.show("text", reviewed.head) == "eins\nzwei\nthree"
    pull.git("merge-base", "--is-ancestor", foreign, reviewed.head)
    replies = (await court.processes.look("github", "state"))["review_comments"]
    ours = [(each["in_reply_to"], each["body"].split("\n")[0]) for each in replies if each["user"] == "kingdom-bot"]
    asked = [each["id"] for each in replies if each["user"] == REVIEWER]
    assert sorted(ours) == list(zip(asked, ANSWERS, strict=True))

    theirs = await pull.move_base()
    resolved = await pull.followup()
    assert pull.show("text", resolved.head) == MERGED_TEXT.strip()
    pull.git("merge-base", "--is-ancestor", theirs, resolved.head)

    ended = await pull.merge()
    assert ended.reason == "it was merged"
    assert ended.rounds == {"review": 1, "checks": 1, "conflicts": 1}
    assert ended.cost_usd == pytest.approx(3 * COST)
    assert len(await court.processes.calls("github", "mutation updateRefs")) == 3
    assert len(await court.processes.calls("github", "POST job rerun")) == 1
    assert len(await court.processes.calls("github", "POST issue comment")) == 1
    assert len(await court.processes.calls("github", "PATCH issue comment")) == 2
    assert pull.show("text", "main") == MERGED_TEXT.strip()
    await assert_one_session(pull)


async def assert_one_session(pull: FollowedPull) -> None:
    """Check that all rounds ran in the session that opened the pull request, each as another soldier."""
    runs = await pull.runs()
    tokens = [run.works[0].agent.session or "" for run in runs]
    assert len(runs) == 4
    assert len({session_of(token) for token in tokens}) == 1
    assert len({soldier_of(token) for token in tokens}) == 4
    assert [run.works[0].agent.continued for run in runs] == [None, True, True, True]
    summaries = [(run.works[0].result or {})["summary"] for run in runs[1:]]
    assert summaries == [SUMMARY.replace("{prompts}", str(prompt)) for prompt in (2, 3, 4)]
    ended = await pull.followup()
    assert {run.kept_until for run in runs} == {ended.ended_at}


async def test_an_agent_that_fixes_nothing_is_stopped_and_a_person_is_asked(court: Court) -> None:
    pull = await opened(court, "Write another text")
    task = await pull.fail_check()
    await pull.act("check", name="unit", conclusion="failure")
    waiting = await pull.until(state="waiting")
    assert waiting.rounds == {"checks": 1}
    [question] = await court.processes.kingdom("inbox")
    assert "the last round repaired none of the failed checks: unit" in question["question"]
    assert (question["task_id"], question["choices"]) == (task.id, ["continue", "stop"])
    await court.processes.kingdom("answer", task.id, "stop")
    assert (await pull.until(state="ended")).reason.endswith("stopped it")
    assert len(await pull.rounds()) == 1
