"""A ticket becomes a pull request, which is followed until it is merged: every role is a process, and git is real."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bench.court.court_processes import ROLES, CourtProcesses
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
    git,
    open_pull,
    prepare_github,
    write_general,
)
from kingdom.court.package_files import SHIPPED
from kingdom.workflow.model.run.work import session_of, soldier_of
from tests.acceptance.court.court import Court, wait
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
        add_gen_fix(processes)
        await asyncio.gather(*(processes.start(name) for name in ROLES))
        yield court


def add_gen_fix(processes: CourtProcesses) -> None:
    """Copy the shipped General, and let it read the labels of our repository."""
    folder = processes.directory / "generals" / "gen-fix"
    shutil.copytree(SHIPPED / "gen-fix", folder)
    described = folder / "general.yaml"
    described.write_text(described.read_text().replace("acme/shop", REPO))


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
    assert [run.works[0].agent.uses_earlier_session for run in runs] == [None, True, True, True]
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


async def test_a_labeled_pull_request_gets_a_pull_request_onto_its_branch_that_repairs_its_checks(court: Court) -> None:
    source, act = court.processes.source, court.processes.people
    theirs = git(source, "commit-tree", "main^{tree}", "-p", "main", "-m", "Work of a person")
    await act("github", "push", repository=REPO, branch="theirs", sha=theirs)
    labeled = await act("github", "pull_request", repository=REPO, by=REVIEWER, title="Their work", head="theirs")
    of_theirs = {"repository": REPO, "number": labeled["number"], "by": REVIEWER}
    await act("github", "check", {**of_theirs, "name": "unit", "conclusion": "failure", "log": "no docs/repaired.md"})
    await act("github", "label", {**of_theirs, "label": "fix-checks"})

    async def repair() -> Any:
        issues = (await court.processes.look("github", "state"))["issues"][REPO].values()
        return [each["pull"] for each in issues if each["title"] == "Repair the checks"]

    [pull] = await wait(repair, "a pull request of gen-fix")
    assert pull["base"]["ref"] == "theirs"
    commits = git(source, "log", "--format=%H", f"theirs..{pull['head']['ref']}").split()
    assert commits == [pull["head"]["sha"]]
    assert git(source, "show", f"{commits[0]}:docs/repaired.md") == "Their work"
    assert git(source, "rev-parse", "theirs") == theirs
