"""Petitions that an assignment waits for: pull requests without a commit, and petitions that cannot be performed."""

from datetime import timedelta

import pytest

from kingdom.clock import utc_now
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.granting import grant_waiting_petitions
from kingdom.court.petitions.records import has_open_petitions
from kingdom.court.petitions.settlement import fail_overdue_petitions, withdraw_waiting_petitions
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from tests.integration.court.petitions.scene import REPO, ROOT, Scene, assignment
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work

TITLE = {"title": "Repair the fin", "body": "It flies."}


@pytest.fixture
def run() -> Run:
    return started(template(work("build"), work("check"), git_refs=(APP,)))


async def knows_the_repository(scene: Scene, repo: str = REPO) -> None:
    git = Git(id="git-app", name="app", url=f"https://github.com/{repo}.git", repo=repo)
    await create_git(scene.bus, git, actor="anna")


async def asks_for_a_pull_request(scene: Scene, run: Run) -> Petition:
    """Let the first agent petition for a pull request in the middle of its work."""
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    return await scene.make_petition("github.pull_request", {**TITLE, "head": "main"}, run=run.workflow, name="p1")


async def is_open(scene: Scene) -> bool:
    async with scene.bus.transaction() as transaction:
        return await has_open_petitions(transaction, ROOT)


async def check_waiting(scene: Scene, run: Run) -> None:
    async with scene.bus.transaction() as transaction:
        await grant_waiting_petitions(transaction, ROOT, run.workflow)


async def test_a_pull_request_waits_for_the_checkpoint_of_the_work_that_asks_for_it(scene: Scene, run: Run) -> None:
    await knows_the_repository(scene)
    asked = await asks_for_a_pull_request(scene, run)
    assert asked.state is PetitionState.REQUESTED
    assert await is_open(scene)
    await check_waiting(scene, run)
    assert (await scene.now(asked)).state is PetitionState.REQUESTED
    run.until(commands.StartAgent, work_index=1)
    await check_waiting(scene, run)
    granted = await scene.now(asked)
    [checkpoint] = run.workflow.checkpoints
    tree = run.workflow.work_trees[0]
    assert granted.state is PetitionState.GRANTED
    assert granted.body == {
        **TITLE,
        "repo": REPO,
        "base": "main",
        "head": tree.branch,
        "head_sha": checkpoint.commits[tree.id],
    }
    assert len(await scene.waiting()) == 1


async def test_requesting_the_same_pull_request_again_is_the_same_petition(scene: Scene, run: Run) -> None:
    await knows_the_repository(scene)
    asked = await asks_for_a_pull_request(scene, run)
    again = await scene.make_petition("github.pull_request", TITLE, run=run.workflow, name="p2")
    assert (again.id, again.state) == (asked.id, PetitionState.REQUESTED)
    run.finish()
    await check_waiting(scene, run)
    assert (await scene.now(asked)).state is PetitionState.GRANTED
    assert len(await scene.waiting()) == 1


async def test_a_run_without_a_checkout_of_the_repository_makes_no_pull_request(scene: Scene, run: Run) -> None:
    await knows_the_repository(scene, "acme/other")
    asked = await asks_for_a_pull_request(scene, run)
    assert (asked.state, asked.reason) == (PetitionState.REFUSED, f"the run has no checkout of {REPO}")
    assert not await is_open(scene)


async def test_a_pull_request_for_something_that_is_not_a_repository_is_refused_with_its_reason(
    scene: Scene, run: Run
) -> None:
    asked = await scene.make_petition("github.pull_request", TITLE, run=run.workflow, root=assignment(repo="no slash"))
    assert asked.state is PetitionState.REFUSED
    assert "this is not a valid github.pull_request" in asked.reason
    assert "$.repo" in asked.reason


async def test_a_petition_for_an_unconfigured_system_is_refused_at_once(scene: Scene) -> None:
    asked = await scene.make_petition("jira.comment", {"body": "Hm."}, unused_systems=("jira",))
    reason = "this realm does not use jira: set sentinel.jira in kingdom.yaml"
    assert (asked.state, asked.reason) == (PetitionState.REFUSED, reason)
    assert (await scene.comment(unused_systems=("jira",))).state is PetitionState.GRANTED


async def test_a_petition_that_waits_for_a_checkpoint_can_be_withdrawn(scene: Scene, run: Run) -> None:
    await knows_the_repository(scene)
    asked = await asks_for_a_pull_request(scene, run)
    async with scene.bus.transaction() as transaction:
        await withdraw_waiting_petitions(transaction, ROOT, "the run failed")
    refused = await scene.now(asked)
    assert (refused.state, refused.reason) == (PetitionState.REFUSED, "the run failed")
    assert not await is_open(scene)


async def test_a_petition_is_open_until_it_is_performed(scene: Scene) -> None:
    assert not await is_open(scene)
    asked = await scene.comment()
    assert await is_open(scene)
    async with scene.performing():
        await scene.until(asked, PetitionState.PERFORMED)
    assert not await is_open(scene)


async def test_an_overdue_petition_counts_as_failed_until_it_is_performed_later(scene: Scene) -> None:
    asked = await scene.comment()
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(hours=2)) == 0
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(hours=4)) == 1
    assert "outcome was still unknown" in (await scene.now(asked)).reason
    assert await scene.settled() == [("PetitionSettled", ROOT)]
    async with scene.performing():
        done = await scene.until(asked, PetitionState.PERFORMED)
    assert done.reason == ""
    assert len(scene.texts()) == 1


async def test_every_step_of_a_petition_is_in_the_log(scene: Scene) -> None:
    await scene.make_petition("github.merge", {})
    asked = await scene.comment()
    async with scene.performing():
        await scene.until(asked, PetitionState.PERFORMED)
    entries = await scene.log(3)
    assert [(entry.type, entry.actor, entry.aggregate_id) for entry in entries] == [
        ("petition.refused", "gen-pr", ROOT),
        ("petition.granted", "gen-pr", ROOT),
        ("petition.performed", "gen-pr", ROOT),
    ]
    assert entries[1].data["target"] == f"{REPO}#1"
