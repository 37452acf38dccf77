"""A push moves the branch of our pull request forward, once, and never over a commit of another person."""

import signal
from typing import Any

import pytest

from kingdom.court.petitions.decision import Petition, PetitionState
from tests.integration.court.petitions.github.own_pull_request import NUMBER, branch, commit, commits_become
from tests.integration.court.petitions.scene import REPO, Scene
from tests.integration.standins.bare_git import BareGit
from tests.unit.workflow.model.scene import Run

PERFORMED, FAILED, REFUSED = PetitionState.PERFORMED, PetitionState.FAILED, PetitionState.REFUSED
UPDATE = "mutation updateRefs"


async def ask(scene: Scene, run: Run, **more: Any) -> Petition:
    return await scene.make_petition("github.push", {"number": NUMBER, **more}, run=run.workflow, name="p2")


async def test_the_commits_of_the_run_are_pushed_to_its_pull_request(scene: Scene, run: Run, git: BareGit) -> None:
    async with scene.performing():
        done = await scene.until(await ask(scene, run, message="Two is dos."), PERFORMED)
    assert git.tip(branch(run)) == commit(run)
    assert done.body == {
        "repo": REPO,
        "number": NUMBER,
        "message": "Two is dos.",
        "branch": branch(run),
        "before": commit(run, 0),
        "head_sha": commit(run),
    }
    assert done.response == {
        "url": f"{scene.github.url}/{REPO}/pull/{NUMBER}",
        "number": NUMBER,
        "commit": commit(run),
    }


async def test_no_agent_chooses_the_branch_or_the_commit(scene: Scene, run: Run, git: BareGit) -> None:
    async with scene.performing():
        await scene.until(await ask(scene, run, branch="main", before=git.base, head_sha=git.head), PERFORMED)
    assert (git.tip("main"), git.tip(branch(run))) == (git.base, commit(run))


async def test_a_pull_request_that_we_did_not_open_gets_no_commits(scene: Scene, run: Run) -> None:
    refused = await ask(scene, run, number=1)
    assert refused.state is REFUSED
    assert refused.reason.startswith(f"{REPO}#1 is not a pull request that this assignment opened")


@pytest.mark.both_stores
@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_exactly_one_push(scene: Scene, run: Run, moment: str, made: int) -> None:
    asked = await ask(scene, run)
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert scene.made(scene.github, UPDATE) == made
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert scene.made(scene.github, UPDATE) == 1


async def test_a_push_of_another_person_is_kept_and_fails_ours(scene: Scene, run: Run, git: BareGit) -> None:
    theirs = git.commit(branch(run), "eins\nzwei\n", commit(run, 0))
    async with scene.performing():
        failed = await scene.until(await ask(scene, run), FAILED)
    assert failed.reason == (
        f"another person pushed commits to {branch(run)}, which is at {theirs[:12]}, and {commit(run)[:12]} does not"
        f" contain them: take them in with a run that starts at {theirs[:12]}"
    )
    assert git.tip(branch(run)) == theirs


async def test_a_push_that_contains_the_commits_of_another_person_is_made(scene: Scene, run: Run, git: BareGit) -> None:
    theirs = git.commit(branch(run), "eins\nzwei\n", commit(run, 0))
    commits_become(run, 1, git.commit("", "eins\ndos\n", commit(run), theirs))
    async with scene.performing():
        await scene.until(await ask(scene, run), PERFORMED)
    assert git.tip(branch(run)) == commit(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "removed",
            "another person removed commits from {branch}, which is at {base} and not at {first}: ask that person",
        ),
        (
            "rewrote",
            "another person rewrote {branch}, which is at {head} and no longer contains {first}: ask that person",
        ),
        ("deleted", "the branch {branch} was deleted: restore it on GitHub, or close acme/rocket#2"),
        ("closed", "acme/rocket#2 is closed: reopen it, or ask for a new pull request"),
    ],
)
async def test_a_branch_that_others_changed_is_not_touched_and_the_reason_says_what_to_do(
    scene: Scene, run: Run, git: BareGit, change: str, reason: str
) -> None:
    match change:
        case "removed":
            git.run("update-ref", f"refs/heads/{branch(run)}", git.base)
        case "rewrote":
            git.run("update-ref", f"refs/heads/{branch(run)}", git.head)
        case "deleted":
            git.run("update-ref", "-d", f"refs/heads/{branch(run)}")
        case "closed":
            await scene.people(scene.github, "close", repository=REPO, number=NUMBER)
    async with scene.performing():
        failed = await scene.until(await ask(scene, run), FAILED)
    names = {"branch": branch(run), "base": git.base[:12], "head": git.head[:12], "first": commit(run, 0)[:12]}
    assert failed.reason.startswith(reason.format(**names))
    assert scene.made(scene.github, UPDATE) == 0


async def test_a_petition_whose_commit_is_not_on_github_fails_with_the_next_step(scene: Scene, run: Run) -> None:
    commits_become(run, 1, "d" * 40)
    async with scene.performing():
        failed = await scene.until(await ask(scene, run), FAILED)
    assert failed.reason == f"GitHub has no commit dddddddddddd: make {REPO} the checkpoint remote of the repository"


async def test_a_second_push_continues_from_the_commit_of_the_first(scene: Scene, run: Run, git: BareGit) -> None:
    async with scene.performing():
        await scene.until(await ask(scene, run), PERFORMED)
        assert (await ask(scene, run)).state is PERFORMED
        second = commit(run)
        commits_become(run, 1, git.commit("", "one\ntres\n", second))
        third = await scene.until(await ask(scene, run, message="Once more."), PERFORMED)
    assert third.body["before"] == second
    assert git.tip(branch(run)) == commit(run)
    assert scene.made(scene.github, UPDATE) == 2
