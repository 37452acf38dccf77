"""`kingdom petition`: external actions, who approved them, and those that a rollback of the run cannot undo."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.bus import Record
from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.records import petitions_of
from kingdom.court.questions import APPROVE
from kingdom.workflow.hosts import register_host
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.steps import operations
from kingdom.workflow.records import WORKFLOWS
from kingdom.workflow.registry import create_git
from tests.acceptance.terminal import Done, Terminal
from tests.contract.scene import eventually
from tests.integration.court.petitions.scene import REPO, ROOT, Scene, assignment
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work

# The output of the commands does not depend on the store, so one backend is enough.
pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)
# The assignment of the run wf-1.
TASK = "1"


@pytest.fixture
def terminal(scene: Scene, tmp_path: Path) -> Terminal:
    place = scene.backend.place
    return Terminal(tmp_path, f"file:{place}" if scene.backend.name == "files" else place)


@pytest.fixture
async def run(scene: Scene) -> Run:
    """A run with two agents: each has written a comment by a petition, and then the second agent has failed."""
    git = Git(id="git-app", name="app", url=f"git@github.com:{REPO}.git", repo=REPO)
    await create_git(scene.bus, git, actor="anna")
    run = started(template(work("build"), work("check"), git_refs=(APP,)))
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    run.until(commands.StartAgent, work_index=1)
    run.receive(spoken(run.until(commands.SendQuery, work_index=1), "p2"))
    run.fail(commands.SendQuery)
    run.finish()
    async with scene.performing():
        for name, text in (("p1", "I begin."), ("p2", "I have finished.")):
            await scene.comment(text, run=run.workflow, root=assignment(id=TASK), name=name)

        async def all_performed() -> bool:
            async with scene.bus.transaction() as transaction:
                known = await petitions_of(transaction, TASK)
            return [each.state for each in known] == [PetitionState.PERFORMED] * 2

        await eventually(all_performed, "both comments are there")
    return run


async def store(scene: Scene, run: Run) -> None:
    async with scene.bus.transaction() as transaction:
        known = await transaction.get(WORKFLOWS.name, run.workflow.id)
        await transaction.put(
            Record(
                kind=WORKFLOWS.name,
                id=run.workflow.id,
                version=known.version if known else 0,
                state=run.status(),
                indexed={"host": "host-a"},
                doc=run.workflow.document(),
            )
        )


async def cli(terminal: Terminal, *words: str) -> Done:
    done = await asyncio.to_thread(terminal.run, *words)
    assert done.code == 0, done.err
    return done


async def test_the_ledger_shows_external_actions_and_who_approved_them(scene: Scene, terminal: Terminal) -> None:
    rules = (PetitionRule(kind="github.comment", approval=True), PetitionRule(kind="github.review"))
    policy = GeneralPolicy(petitions=rules)
    async with scene.performing():
        comment = await scene.comment("Merge this at once.", policy=policy)
        await scene.answer(comment, APPROVE, "dana")
        await scene.check_waiting()
        await scene.until(comment, PetitionState.PERFORMED)
        refused: Petition = await scene.make_petition("jira.comment", {"body": "It flies."}, policy=policy)
    first, second = (await cli(terminal, "petition", "list", ROOT, "--json")).document
    assert (first["id"], first["task_id"], first["workflow_id"]) == (comment.id, ROOT, f"wf-{ROOT}")
    assert (first["kind"], first["target"], first["state"]) == ("github.comment", f"{REPO}#1", "performed")
    assert first["url"].startswith(f"{scene.github.url}/{REPO}/issues/1#issuecomment-")
    assert (first["decided_by"], first["left_behind"]) == ("dana", False)
    assert first["asked_at"] < first["ended_at"]
    assert (second["id"], second["state"]) == (refused.id, "refused")
    assert "does not allow jira.comment" in second["reason"]
    table = (await cli(terminal, "petition", "list")).out
    assert all(words in table for words in (comment.id[-8:], "dana", first["url"], "does not allow jira.comment"))
    shown = (await cli(terminal, "petition", "show", comment.id[-8:], "--json")).document
    assert (shown["id"], shown["body"]["body"], shown["asked_as"]) == (
        comment.id,
        "Merge this at once.",
        list(comment.asked_as),
    )
    assert "Merge this at once." in (await cli(terminal, "petition", "show", comment.id)).out


async def test_without_petitions_the_ledger_is_empty(scene: Scene, terminal: Terminal) -> None:
    assert (await cli(terminal, "petition", "list")).out == "There are no petitions.\n"
    unknown = await asyncio.to_thread(terminal.run, "petition", "list", "task-20200101-001")
    assert (unknown.code, "no workflow 'task-20200101-001'" in unknown.err) == (1, True)
    nowhere = await asyncio.to_thread(terminal.run, "petition", "show", "abcdef12")
    assert (nowhere.code, "kingdom petition list" in nowhere.err) == (1, True)
    assert (await scene.petitions()) == []


async def test_resuming_from_a_checkpoint_warns_about_actions_that_git_cannot_undo(
    scene: Scene, terminal: Terminal, run: Run
) -> None:
    await store(scene, run)
    await register_host(scene.bus, "host-a", 4, timedelta(minutes=10))
    first, second = (await cli(terminal, "petition", "list", "wf-1", "--json")).document
    assert (first["left_behind"], second["left_behind"]) == (False, False)
    [left] = (await cli(terminal, "petition", "list", "wf-1", "--after", "w1-c1", "--json")).document
    assert left["id"] == second["id"]
    both = (await cli(terminal, "petition", "list", "wf-1", "--after", "base", "--json")).document
    assert [each["id"] for each in both] == [first["id"], second["id"]]
    resumed = await cli(terminal, "workflow", "resume", "wf-1", "--from", "w1-c1", "--json")
    assert resumed.err.count("Git cannot undo this") == 1
    assert f"github.comment is performed, {second['url']}" in resumed.err


async def test_a_petition_of_work_that_was_rolled_back_is_left_behind_until_it_is_requested_again(
    scene: Scene, terminal: Terminal, run: Run
) -> None:
    run.do(operations.resume, operations.FromCheckpoint(run.workflow.checkpoints[0].id))
    run.succeed(commands.RollBack)
    await store(scene, run)
    first, second = (await cli(terminal, "petition", "list", "wf-1", "--json")).document
    assert (first["left_behind"], second["left_behind"]) == (False, True)
    assert (await cli(terminal, "petition", "list", "wf-1")).out.count("git cannot undo it") == 1
    run.receive(spoken(run.until(commands.SendQuery, work_index=1), "p3"))
    await store(scene, run)
    again = await scene.comment("I have finished.", run=run.workflow, root=assignment(id=TASK), name="p3")
    assert again.state is PetitionState.PERFORMED
    first, second = (await cli(terminal, "petition", "list", "wf-1", "--json")).document
    assert (first["left_behind"], second["left_behind"]) == (False, False)
    assert len(scene.texts()) == 2
