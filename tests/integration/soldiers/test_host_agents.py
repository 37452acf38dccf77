"""Agents that crash, hang, ask, petition, fail their checks, or find no repository."""

import pytest

from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host.command_handlers import GRACE
from kingdom.soldiers.turns import turn
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import events
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.template import RunPolicy
from kingdom.workflow.model.status import TaskStatus, WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue
from kingdom.workflow.records import DOCUMENTS
from kingdom.workflow.registry import delete_git
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.integration.soldiers.intercepted_agents import InterceptedAgents
from tests.integration.soldiers.sources import run

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)


@ONE_BACKEND
async def test_an_agent_that_exits_without_an_answer_fails_its_run_with_its_exit_code(scene: HostScene) -> None:
    await scene.start_host()
    workflow = await scene.begin(work("one", task({"crash": 3})))
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert failed.reason == "exit code 3"
    assert scene.processes() == []


@ONE_BACKEND
async def test_a_policy_lets_a_run_continue_by_itself_after_a_crash(scene: HostScene) -> None:
    await scene.start_host()
    path = f"{APP}/one.txt"
    steps = (
        {"append": path, "text": "before\n"},
        {"crash": 3, "first_time_only": True},
        {"append": path, "text": "after\n"},
    )
    workflow = await scene.begin(work("one", task(*steps)), policy=RunPolicy(retries=1))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    (retried,) = await scene.logged(workflow, events.WorkRetried)
    assert retried.data["reason"] == "exit code 3"
    assert (scene.tree(completed) / "one.txt").read_text() == "before\nafter\n"


@ONE_BACKEND
@pytest.mark.parametrize("hang", [True, "deaf"], ids=["until interrupted", "ignoring interrupts"])
async def test_an_agent_that_does_not_answer_in_time_fails_its_run_and_is_gone(
    scene: HostScene, hang: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_INTERRUPT_SECONDS", 0.1)
    agents = InterceptedAgents(ScriptedAgentClient())
    await scene.start_host(client=agents)
    workflow = await scene.begin(work("one", task({"hang": hang}, timeout_seconds=1)))
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    # The interrupted turn had a moment to report its cost, much less than the grace period of a stop.
    assert agents.graces
    assert max(agents.graces) < GRACE
    assert failed.reason == "no answer within 1 s: give the task more time, or a smaller query"
    assert scene.processes() == []


@ONE_BACKEND
async def test_an_agent_that_asks_continues_with_the_reply(scene: HostScene) -> None:
    await scene.start_host()
    asks = task({"ask": "Which way?", "choices": ["left", "right"]}, {"write": f"{APP}/way.txt", "text": "{reply}\n"})
    workflow = await scene.begin(work("one", asks))
    awaiting = await scene.until(workflow, WorkflowStatus.AWAITING)
    assert scene.processes() == []
    assert awaiting.question is not None
    assert (awaiting.question.text, awaiting.question.choices) == ("Which way?", ("left", "right"))

    await lifecycle.resume(scene.bus, workflow.id, Continue(reply="left"), actor=ANNA)
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert (scene.tree(completed) / "way.txt").read_text() == "left\n"
    assert completed.works[0].agent.session == awaiting.works[0].agent.session


@ONE_BACKEND
async def test_petitions_and_messages_of_agents_are_kept_with_the_run(scene: HostScene) -> None:
    await scene.start_host()
    petition = {"petition": "comment", "body": {"text": "well done"}}
    workflow = await scene.begin(work("one", task(petition, {"cost": 0.25}, {"answer": "It is done."})))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    (kept,) = completed.works[0].petitions
    assert (kept.kind, kept.body) == ("comment", {"text": "well done"})
    assert completed.works[0].cost_usd == 0.25
    async with scene.bus.transaction() as transaction:
        answer = await transaction.get(DOCUMENTS.name, completed.works[0].tasks[0].query.response)
    assert answer is not None
    assert answer.doc["text"] == "It is done."


async def test_a_text_with_a_nul_character_does_not_prevent_the_run_from_completing(scene: HostScene) -> None:
    await scene.start_host()
    odd = "nothing: \0"
    steps = ({"say": odd}, {"petition": "comment", "body": {"text": odd}}, {"report": odd}, {"answer": odd})
    workflow = await scene.begin(work("one", task(*steps)), writes("two"))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert [each.status for work in completed.works for each in work.tasks] == [TaskStatus.COMPLETED] * 2


@ONE_BACKEND
async def test_a_gate_waits_for_a_person_without_any_process(scene: HostScene) -> None:
    await scene.start_host()
    gated = work("one", *writes("one").tasks, pause_after=True)
    workflow = await scene.begin(gated, writes("two"))
    awaiting = await scene.until(workflow, WorkflowStatus.AWAITING)
    assert awaiting.reason == "approval after one"
    assert len(awaiting.checkpoints) == 1
    assert scene.processes() == []
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    await scene.until(workflow, WorkflowStatus.COMPLETED)


@ONE_BACKEND
async def test_a_failed_check_shows_its_last_output_and_can_pass_later(scene: HostScene) -> None:
    await scene.start_host()
    wanted = scene.folder / "wanted"
    check = f"test -f {APP}/one.txt && {{ test -e {wanted} || {{ echo so much for that >&2; exit 4; }}; }}"
    workflow = await scene.begin(work("one", *writes("one").tasks, verify=("true", check)))
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert "failed (exit code 4): so much for that" in failed.reason
    assert run("status", "--porcelain", cwd=scene.tree(failed)) == ""

    wanted.touch()
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert completed.works[0].tasks[0].query.attempt == 1


@ONE_BACKEND
async def test_a_check_may_take_as_long_as_its_work_says(scene: HostScene) -> None:
    await scene.start_host()
    slow = work("one", task(timeout_seconds=300), verify=("sleep 907",), timeout_seconds=1)
    workflow = await scene.begin(slow, git_refs=())
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert "`sleep 907` failed: /bin/sh took longer than 1 s" in failed.reason
    assert "`timeoutSeconds` of a Work" in failed.reason


@ONE_BACKEND
async def test_a_check_that_cannot_be_started_does_not_blame_the_time_limit(scene: HostScene) -> None:
    await scene.start_host()
    workflow = await scene.begin(work("one", task(), verify=('rm -r "$PWD"', "true")), git_refs=())
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert "`true` failed: " in failed.reason
    assert "could not be started" in failed.reason
    assert "timeoutSeconds" not in failed.reason


@ONE_BACKEND
async def test_a_missing_base_branch_fails_the_run_with_the_branches_there_are(scene: HostScene) -> None:
    await scene.start_host()
    workflow = await scene.begin(writes("one"), git_refs=[GitRef(git_id=APP, base_branch="dev")])
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert "has no branch 'dev': choose an existing one (main)" in failed.reason
    run("branch", "dev", cwd=scene.folder / "sources" / APP)
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    await scene.until(workflow, WorkflowStatus.COMPLETED)


@ONE_BACKEND
async def test_a_start_that_is_stored_after_its_repository_was_deleted_fails_by_name(scene: HostScene) -> None:
    await scene.start_host()
    workflow = await scene.create_run(writes("one"))
    async with scene.bus.transaction() as transaction:
        await lifecycle.start(transaction, workflow.id, actor=ANNA)
        assert (await delete_git(scene.bus, APP, actor=ANNA)).deleted
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert f"no checkout of {APP}" in failed.reason
    assert "DELETED" in failed.reason
