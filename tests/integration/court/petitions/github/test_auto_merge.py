"""An automatic merge is switched on after an approval, for one commit of our pull request, and off before a push."""

import signal
from typing import Any

import pytest

from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.granting import ApprovalTerms, grant_waiting_petitions
from kingdom.court.questions import load_question
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.github.own_pull_request import NUMBER, branch, commit
from tests.integration.court.petitions.scene import ALLOWED, REPO, ROOT, Scene
from tests.integration.standins.bare_git import BareGit
from tests.unit.workflow.model.scene import Run

REQUESTED, GRANTED = PetitionState.REQUESTED, PetitionState.GRANTED
PERFORMED, FAILED, REFUSED = PetitionState.PERFORMED, PetitionState.FAILED, PetitionState.REFUSED
MERGING = GeneralPolicy(petitions=(*ALLOWED.petitions, PetitionRule(kind="github.auto_merge", at_most=3)))
ENABLE, DISABLE = "mutation enablePullRequestAutoMerge", "mutation disablePullRequestAutoMerge"


@pytest.fixture(autouse=True)
async def required_check(scene: Scene) -> None:
    """A check that no commit has passed, so no pull request can be merged at once."""
    await scene.people(scene.github, "protection", repository=REPO, checks=["test"])


async def ask(scene: Scene, run: Run, **body: Any) -> Petition:
    asked = {"number": NUMBER, **body}
    return await scene.make_petition("github.auto_merge", asked, policy=MERGING, run=run.workflow, name="p2")


async def push(scene: Scene, run: Run) -> Petition:
    return await scene.make_petition("github.push", {"number": NUMBER}, run=run.workflow, name="p2")


async def approve(scene: Scene, run: Run, asked: Petition) -> Petition:
    await scene.answer(asked, "approve")
    return await decide(scene, run, asked)


async def decide(scene: Scene, run: Run, asked: Petition) -> Petition:
    """Let the General look at the petition again."""
    async with scene.bus.transaction() as transaction:
        await grant_waiting_petitions(transaction, ROOT, run.workflow, ApprovalTerms(policy=MERGING, channel="dev"))
    return await scene.now(asked)


def merge_request(scene: Scene) -> dict[str, Any] | None:
    pull = scene.github.application[STATE_FILE].state["issues"][REPO][str(NUMBER)]["pull"]
    found: dict[str, Any] | None = pull.get("auto_merge")
    return found


async def test_a_merge_needs_an_approval_even_if_its_rule_does_not_say_so(scene: Scene, run: Run) -> None:
    asked = await ask(scene, run, method="SQUASH")
    assert asked.awaits_person
    async with scene.bus.transaction() as transaction:
        found = await load_question(transaction, asked.id)
    assert found
    assert f"head_sha: {commit(run, 0)}" in found[1].text
    assert (await approve(scene, run, asked)).state is GRANTED
    async with scene.performing():
        done = await scene.until(asked, PERFORMED)
    assert merge_request(scene) == {"by": "kingdom-bot", "method": "squash"}
    assert done.response["commit"] == commit(run, 0)


async def test_a_merge_is_refused_unless_a_rule_names_it_and_the_pull_request_is_ours(scene: Scene, run: Run) -> None:
    unnamed = await scene.make_petition("github.auto_merge", {"number": NUMBER}, run=run.workflow, name="p2")
    theirs = await ask(scene, run, number=1)
    assert unnamed.reason == "the policy of gen-pr does not allow github.auto_merge"
    assert theirs.state is REFUSED
    assert theirs.reason.startswith(f"{REPO}#1 is not a pull request that this assignment opened")


async def test_no_agent_chooses_the_commit_that_is_merged(scene: Scene, run: Run, git: BareGit) -> None:
    asked = await ask(scene, run, head_sha=git.head)
    assert asked.body["head_sha"] == commit(run, 0)


async def test_a_merge_waits_for_the_push_before_it_and_is_about_its_commit(scene: Scene, run: Run) -> None:
    pushed, asked = await push(scene, run), await ask(scene, run)
    assert (asked.state, asked.awaits_person) == (REQUESTED, False)
    async with scene.performing():
        await scene.until(pushed, PERFORMED)
        waiting = await decide(scene, run, asked)
        assert (waiting.awaits_person, waiting.body["head_sha"]) == (True, commit(run))


async def test_a_commit_of_another_person_is_not_merged_with_the_approval_of_ours(
    scene: Scene, run: Run, git: BareGit
) -> None:
    asked = await ask(scene, run)
    await approve(scene, run, asked)
    theirs = git.commit(branch(run), "eins\nzwei\n", commit(run, 0))
    await scene.people(scene.github, "push", repository=REPO, number=NUMBER, sha=theirs)
    async with scene.performing():
        failed = await scene.until(asked, FAILED)
    assert failed.reason == (
        f"{REPO}#{NUMBER} is at {theirs[:12]}, and the merge of {commit(run, 0)[:12]} was approved: ask for it again"
    )
    assert scene.made(scene.github, ENABLE) == 0


async def test_a_later_push_switches_the_merge_off_first(scene: Scene, run: Run, git: BareGit) -> None:
    async with scene.performing():
        asked = await ask(scene, run)
        await approve(scene, run, asked)
        await scene.until(asked, PERFORMED)
        await scene.until(await push(scene, run), PERFORMED)
    assert merge_request(scene) is None
    assert git.tip(branch(run)) == commit(run)
    assert scene.made(scene.github, DISABLE) == 1


@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_switches_the_merge_on_once(scene: Scene, run: Run, moment: str, made: int) -> None:
    asked = await ask(scene, run)
    await approve(scene, run, asked)
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert scene.made(scene.github, ENABLE) == made
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert scene.made(scene.github, ENABLE) == 1


async def test_a_pull_request_that_can_be_merged_now_fails_with_the_words_of_github(scene: Scene, run: Run) -> None:
    await scene.people(scene.github, "protection", repository=REPO)
    asked = await ask(scene, run)
    await approve(scene, run, asked)
    async with scene.performing():
        failed = await scene.until(asked, FAILED)
    assert failed.reason == (f"GitHub refused the automatic merge of {REPO}#{NUMBER}: Pull request is in clean status")
