"""A commit of a stranger's run, or on protected paths, is published only after a person has approved exactly it."""

from typing import Any

import msgspec
import pytest

from kingdom.court.followups.records import load_followup
from kingdom.court.package import FollowPolicy, GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.granting import ApprovalTerms, grant_waiting_petitions
from kingdom.court.petitions.settlement import settle_petition
from kingdom.court.questions import QuestionStatus, load_question
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from tests.integration.court.petitions.scene import ALLOWED, REPO, ROOT, Scene, assignment
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work

REQUESTED, GRANTED, REFUSED = PetitionState.REQUESTED, PetitionState.GRANTED, PetitionState.REFUSED
WORKFLOW = ".github/workflows/ci.yml"
FIRST, SECOND = "c0ffee" + "0" * 34, "decade" + "0" * 34


@pytest.fixture
async def run(scene: Scene) -> Run:
    """A run whose first Work asked for a pull request and left a commit."""
    await create_git(
        scene.bus, Git(id="git-app", name="app", url=f"git@github.com:{REPO}.git", repo=REPO), actor="anna"
    )
    run = started(template(work("build"), work("check"), git_refs=(APP,)))
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    run.until(commands.StartAgent, work_index=1)
    return run


def leave_commit(run: Run, commit: str, *paths: str) -> None:
    checkpoint, tree = run.workflow.checkpoints[0], run.workflow.work_trees[0].id
    checkpoint.commits[tree], checkpoint.changed_paths[tree] = commit, list(paths)


async def ask(scene: Scene, run: Run, policy: GeneralPolicy = ALLOWED) -> Petition:
    return await scene.make_petition(
        "github.pull_request", {"title": "Fly"}, policy=policy, run=run.workflow, name="p1"
    )


async def decide(scene: Scene, run: Run, asked: Petition, policy: GeneralPolicy = ALLOWED) -> Petition:
    """Let the General decide about the waiting petition again."""
    async with scene.bus.transaction() as transaction:
        await grant_waiting_petitions(transaction, ROOT, run.workflow, ApprovalTerms(policy=policy, channel="dev"))
    return await scene.now(asked)


async def question(scene: Scene, asked: Petition) -> str:
    async with scene.bus.transaction() as transaction:
        found = await load_question(transaction, asked.id)
    return found[1].text if found and found[1].status is QuestionStatus.OPEN else ""


async def test_a_change_of_a_protected_path_waits_for_a_person_who_sees_path_and_commit(scene: Scene, run: Run) -> None:
    leave_commit(run, FIRST, "src/fin.py", WORKFLOW)
    asked = await ask(scene, run)
    assert (asked.state, asked.awaits_person) == (REQUESTED, True)
    text = await question(scene, asked)
    assert f"A person must approve it, because it changes {WORKFLOW}\n" in text
    assert f"head_sha: {FIRST}" in text
    await scene.answer(asked, "approve")
    granted = await decide(scene, run, asked)
    assert (granted.state, granted.body["head_sha"], granted.decided_by) == (GRANTED, FIRST, "anna")


async def test_an_approval_of_one_commit_does_not_hold_for_another(scene: Scene, run: Run) -> None:
    leave_commit(run, FIRST, WORKFLOW)
    asked = await ask(scene, run)
    await scene.answer(asked, "approve")
    leave_commit(run, SECOND, WORKFLOW)
    again = await decide(scene, run, asked)
    assert (again.state, again.awaits_person, again.decided_by) == (REQUESTED, True, "")
    assert f"head_sha: {SECOND}" in await question(scene, asked)
    assert await scene.waiting() == []
    await scene.answer(asked, "approve", "bob")
    granted = await decide(scene, run, asked)
    assert (granted.state, granted.body["head_sha"], granted.decided_by) == (GRANTED, SECOND, "bob")


async def test_a_rejected_commit_is_never_published(scene: Scene, run: Run) -> None:
    leave_commit(run, FIRST, WORKFLOW)
    asked = await ask(scene, run)
    await scene.answer(asked, "reject")
    assert (await decide(scene, run, asked)).state is REFUSED
    assert await scene.waiting() == []


async def test_a_commit_whose_changed_paths_are_not_known_waits_for_a_person(scene: Scene, run: Run) -> None:
    run.workflow.checkpoints[0].changed_paths.clear()
    asked = await ask(scene, run)
    assert asked.awaits_person
    assert "because its changed files are too many to check, or not known" in await question(scene, asked)


async def test_unprotected_paths_and_an_empty_list_of_protected_paths_need_no_approval(scene: Scene, run: Run) -> None:
    leave_commit(run, FIRST, "src/fin.py", ".gitignore")
    assert (await ask(scene, run)).state is GRANTED
    leave_commit(run, FIRST, WORKFLOW)
    open_policy = GeneralPolicy(
        petitions=(PetitionRule(kind="github.pull_request", at_most=9),), protected_paths=(), result_people=("*",)
    )
    other = await scene.make_petition(
        "github.pull_request", {"title": "Steer"}, policy=open_policy, run=run.workflow, name="p1"
    )
    assert other.state is GRANTED


async def test_a_rule_that_requires_approval_asks_a_person_once_the_commit_is_known(scene: Scene, run: Run) -> None:
    careful = GeneralPolicy(petitions=(PetitionRule(kind="github.pull_request", approval=True),), result_people=("*",))
    commit = run.workflow.checkpoints[0].commits.pop(run.workflow.work_trees[0].id)
    asked = await ask(scene, run, careful)
    assert (asked.state, asked.awaits_person) == (REQUESTED, False)
    leave_commit(run, FIRST, "src/fin.py")
    assert commit != FIRST
    assert (await decide(scene, run, asked, careful)).awaits_person
    assert f"head_sha: {FIRST}" in await question(scene, asked)
    await scene.answer(asked, "approve")
    assert (await decide(scene, run, asked, careful)).state is GRANTED


@pytest.mark.parametrize("kind", ["github.pull_request", "github.push"])
@pytest.mark.parametrize(
    ("event", "actor", "state"),
    [
        ({}, "Mallory", REQUESTED),
        ({}, None, REQUESTED),
        ({}, "Anna", GRANTED),
        ({"type": "github.pr.labeled"}, "mallory", GRANTED),
        ({"type": "github.followup"}, None, GRANTED),
        ({"type": "github.followup", "payload": {"number": 2, "stranger": "mallory"}}, None, REQUESTED),
        ({"event_id": "evt-jira-1"}, "mallory", GRANTED),
        ({"event_id": "evt-cli-1"}, "mallory", GRANTED),
    ],
)
async def test_a_commit_of_a_run_that_a_stranger_caused_waits_for_a_person(
    scene: Scene, run: Run, kind: str, event: dict[str, Any], actor: str | None, state: PetitionState
) -> None:
    leave_commit(run, FIRST, "src/fin.py")
    policy = msgspec.structs.replace(ALLOWED, result_people=("anna",))
    root = assignment(**{"payload": {"number": 2, "actor": actor}, **event})
    opened = await scene.make_petition(
        "github.pull_request",
        {"title": "Fly"},
        policy=policy,
        run=run.workflow,
        root=root,
        name="p1",
        follow=FollowPolicy(),
    )
    asked = opened
    if kind == "github.push":
        async with scene.bus.transaction() as transaction:
            await settle_petition(transaction, opened.id, PetitionState.PERFORMED, response={"number": 2})
        asked = await scene.make_petition(kind, {}, policy=policy, run=run.workflow, root=root, name="p1")
        async with scene.bus.transaction() as transaction:
            assert (await load_followup(transaction, f"{REPO}#2"))[1].stranger == asked.stranger
    assert asked.state is state
    if state is REQUESTED:
        name = actor or root.payload.get("stranger") or "an unknown person"
        assert f"because {name}, who is not in policy.result_people, caused this run\n" in await question(scene, asked)
