"""A pull request: one branch at the commit of the run and one pull request for it, even if answers are lost."""

import signal
from typing import Any

import pytest

from kingdom.bus import LogCursor, LogEntry
from kingdom.clock import utc_now
from kingdom.court.followups.records import (
    Followup,
    FollowupState,
    end_followup,
    find_followup,
    load_followup,
    record_push,
    save_followup,
)
from kingdom.court.package import FollowPolicy
from kingdom.court.petitions.commits import OwnPullRequest, find_own_pull_request
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.granting import grant_waiting_petitions
from kingdom.court.petitions.records import save_petition
from kingdom.court.petitions.settlement import settle_petition
from kingdom.errors import NotFound
from kingdom.standins.server import STATE_FILE
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from tests.contract.scene import eventually
from tests.integration.court.petitions.scene import REPO, ROOT, Scene
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work

PERFORMED, FAILED = PetitionState.PERFORMED, PetitionState.FAILED
TITLE = {"title": "Repair the fin", "body": "It flies."}
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
async def run(scene: Scene) -> Run:
    """A run whose first Work asked for a pull request and left a commit."""
    git = Git(id="git-app", name="app", url=f"git@github.com:{REPO}.git", repo=REPO)
    await create_git(scene.bus, git, actor="anna")
    run = started(template(work("build"), work("check"), git_refs=(APP,)))
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    run.until(commands.StartAgent, work_index=1)
    commits_become(run, COMMIT)
    return run


def commits_become(run: Run, commit: str) -> None:
    run.workflow.checkpoints[0].commits[run.workflow.work_trees[0].id] = commit


async def make_petition(scene: Scene, run: Run, **more: Any) -> Petition:
    asked = await scene.make_petition("github.pull_request", {**TITLE, **more}, run=run.workflow, name="p1")
    assert asked.state is PetitionState.GRANTED
    return asked


def branch(run: Run) -> str:
    return run.workflow.work_trees[0].branch


def opened(scene: Scene) -> list[dict[str, Any]]:
    """Return the pull requests that we opened."""
    issues = scene.github.application[STATE_FILE].state["issues"][REPO].values()
    return [issue for issue in issues if issue["user"] == "kingdom-bot"]


async def test_the_commit_of_the_run_gets_a_branch_and_a_pull_request(scene: Scene, run: Run) -> None:
    async with scene.performing():
        done = await scene.until(await make_petition(scene, run), PERFORMED)
    [pull] = opened(scene)
    assert (pull["title"], pull["pull"]["head"]["ref"], pull["pull"]["base"]["ref"]) == (
        "Repair the fin",
        branch(run),
        "main",
    )
    assert pull["body"].startswith("It flies.\n\n<!-- kingdom:")
    assert scene.made(scene.github, "POST git ref", ref=f"refs/heads/{branch(run)}", sha=COMMIT) == 1
    assert done.response["number"] == pull["number"]
    assert done.response["url"] == f"{scene.github.url}/{REPO}/pull/{pull['number']}"


async def test_neither_title_nor_text_of_a_pull_request_are_commands_to_bots(scene: Scene, run: Run) -> None:
    async with scene.performing():
        await scene.until(await make_petition(scene, run, title="/merge @bors r+", body="Fine.\n/approve"), PERFORMED)
    [pull] = opened(scene)
    assert pull["title"] == "/\u200bmerge @\u200bbors r+"
    assert pull["body"].startswith("Fine.\n/\u200bapprove\n\n<!-- kingdom:")


@pytest.mark.parametrize("path", ["*/git/refs", "*/pulls"])
async def test_a_lost_answer_about_the_branch_or_the_pull_request_leaves_one_pull_request(
    scene: Scene, run: Run, path: str
) -> None:
    scene.trouble(scene.github, kind="lose_answer", method="POST", path=path)
    async with scene.performing():
        asked = await make_petition(scene, run)
        await scene.until(asked, PERFORMED)
    assert len(opened(scene)) == scene.made(scene.github, "POST git ref") == 1
    assert await scene.attempts(asked) == (["ACKED"] if path == "*/pulls" else ["UNKNOWN", "ACKED"])


@pytest.mark.both_stores
@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_exactly_one_pull_request(scene: Scene, run: Run, moment: str, made: int) -> None:
    asked = await make_petition(scene, run)
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert len(opened(scene)) == made
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert len(opened(scene)) == 1


async def test_an_open_pull_request_of_the_same_branch_counts_as_the_result(scene: Scene, run: Run) -> None:
    theirs = await scene.people(
        scene.github, "pull_request", repository=REPO, title="By hand", head=branch(run), sha=COMMIT
    )
    async with scene.performing():
        done = await scene.until(await make_petition(scene, run), PERFORMED)
    assert done.response["number"] == theirs["number"]
    assert opened(scene) == []


async def test_a_branch_that_is_at_another_commit_is_not_moved(scene: Scene, run: Run) -> None:
    async with scene.performing():
        await scene.until(await make_petition(scene, run), PERFORMED)
        commits_become(run, "badcab" + "0" * 34)
        failed = await scene.until(await make_petition(scene, run, title="Another"), FAILED)
    assert failed.reason == f"the branch {branch(run)} already exists at {COMMIT[:12]}, not at badcab000000"
    assert scene.made(scene.github, "POST git ref") == 1


async def test_a_petition_whose_commit_is_not_on_github_fails_with_the_next_step(scene: Scene, run: Run) -> None:
    commits_become(run, "0" * 40)
    async with scene.performing():
        failed = await scene.until(await make_petition(scene, run), FAILED)
    assert f"make {REPO} the checkpoint remote" in failed.reason


async def test_a_granted_petition_is_not_granted_again_when_the_run_continues(scene: Scene, run: Run) -> None:
    asked = await make_petition(scene, run)
    run.finish()
    async with scene.bus.transaction() as transaction:
        await grant_waiting_petitions(transaction, ROOT, run.workflow)
    assert len(await scene.waiting()) == 1
    assert (await scene.now(asked)).body["head_sha"] == COMMIT


async def open_followed(scene: Scene, run: Run, follow: FollowPolicy | None) -> str:
    """Open a pull request as an agent, and return the id that its followup has, if there is one."""
    petition = await scene.make_petition("github.pull_request", TITLE, run=run.workflow, name="p1", follow=follow)
    async with scene.performing():
        done = await scene.until(petition, PERFORMED)
    return f"{REPO}#{done.response['number']}"


async def found_followup(scene: Scene, followup_id: str) -> Followup | None:
    async with scene.bus.transaction() as transaction:
        known = await find_followup(transaction, followup_id)
    return known[1] if known else None


async def followup_log(scene: Scene, count: int) -> list[LogEntry]:
    async def read() -> list[LogEntry]:
        entries = [logged.entry for logged in await scene.operations.read_log(LogCursor(), 1000)]
        found = [entry for entry in entries if entry.type.startswith("followup.")]
        return found if len(found) >= count else []

    return await eventually(read, f"{count} entries can be read")


async def test_a_pull_request_is_followed_with_its_branch_and_its_commit(scene: Scene, run: Run) -> None:
    followup = await found_followup(scene, await open_followed(scene, run, FollowPolicy(days=2)))
    assert followup is not None
    assert (followup.repo, followup.branch, followup.base, followup.head) == (REPO, branch(run), "main", COMMIT)
    assert (followup.general, followup.assignment_id, followup.workflow_id) == ("gen-pr", ROOT, run.workflow.id)
    assert (followup.state, followup.rounds, followup.is_over) == (FollowupState.OPEN, {}, False)
    assert (followup.ends_at - followup.created_at).days == 2
    [entry] = await followup_log(scene, 1)
    assert (entry.type, entry.data["pull_request"]) == ("followup.started", followup.id)


async def test_without_the_section_follow_no_pull_request_is_followed(scene: Scene, run: Run) -> None:
    assert await found_followup(scene, await open_followed(scene, run, None)) is None


@pytest.mark.parametrize("state", [PERFORMED, FAILED])
async def test_a_followup_has_the_last_commit_that_was_pushed(scene: Scene, run: Run, state: PetitionState) -> None:
    followup_id = await open_followed(scene, run, FollowPolicy())
    before = await found_followup(scene, followup_id)
    assert before is not None
    pushed = {"repo": REPO, "number": before.number, "head_sha": "d" * 40}
    about: dict[str, Any] = {"root": ROOT, "general": "gen-pr", "workflow_id": run.workflow.id, "target": followup_id}
    push = Petition(id="push-1", kind="github.push", body=pushed, created_at=before.created_at, **about)
    async with scene.bus.transaction() as transaction:
        await save_petition(transaction, push, None)
        await settle_petition(transaction, push.id, state)
    after = await found_followup(scene, followup_id)
    assert after is not None
    assert after.head == ("d" * 40 if state is PERFORMED else COMMIT)


async def test_a_followup_ends_once_and_keeps_its_first_reason(scene: Scene, run: Run) -> None:
    followup_id = await open_followed(scene, run, FollowPolicy())
    for reason in ("it was merged", "it was closed"):
        async with scene.bus.transaction() as transaction:
            record, followup = await load_followup(transaction, followup_id.upper())
            await end_followup(transaction, record, followup, reason, at=followup.created_at, actor="king")
    ended = await found_followup(scene, followup_id)
    assert ended is not None
    assert (ended.state, ended.reason, ended.is_over) == (FollowupState.ENDED, "it was merged", True)
    log = await followup_log(scene, 2)
    assert [entry.data.get("reason") for entry in log] == [None, "it was merged"]


async def test_a_round_can_still_push_after_its_followup_has_ended(scene: Scene, run: Run) -> None:
    now = utc_now()
    whose: dict[str, Any] = {"general": "gen-pr", "assignment_id": ROOT, "workflow_id": run.workflow.id}
    pull = Followup(
        id=f"{REPO}#9", repo=REPO, number=9, branch="b", base="main", head=COMMIT, created_at=now, ends_at=now, **whose
    )
    async with scene.bus.transaction() as transaction:
        record = await save_followup(transaction, pull, None)
        await end_followup(transaction, record, pull, "anna stopped it", at=now, actor="anna")
    async with scene.bus.transaction() as transaction:
        assert await find_own_pull_request(transaction, ROOT, REPO, 9) == OwnPullRequest("b", COMMIT)
        assert await find_own_pull_request(transaction, "task-20261118-999", REPO, 9) is None
        await record_push(transaction, REPO, 9, "d" * 40, now)
    ended = await found_followup(scene, pull.id)
    assert ended is not None
    assert (ended.head, ended.state, ended.reason) == ("d" * 40, FollowupState.ENDED, "anna stopped it")


async def test_the_error_for_an_unknown_pull_request_shows_the_expected_form(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        with pytest.raises(NotFound, match="write OWNER/NAME#NUMBER"):
            await load_followup(transaction, "shop-7")
