"""A pull request: one branch at the commit of the run and one pull request for it, even if answers are lost."""

import signal
from typing import Any

import pytest

from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.granting import grant_waiting_petitions
from kingdom.standins.server import STATE_FILE
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
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


async def test_a_commit_that_never_reached_github_fails_with_what_to_do(scene: Scene, run: Run) -> None:
    commits_become(run, "0" * 40)
    async with scene.performing():
        failed = await scene.until(await make_petition(scene, run), FAILED)
    assert f"make {REPO} the checkpoint remote" in failed.reason


async def test_nothing_is_granted_twice_when_the_run_continues(scene: Scene, run: Run) -> None:
    asked = await make_petition(scene, run)
    run.finish()
    async with scene.bus.transaction() as transaction:
        await grant_waiting_petitions(transaction, ROOT, run.workflow)
    assert len(await scene.waiting()) == 1
    assert (await scene.now(asked)).body["head_sha"] == COMMIT
