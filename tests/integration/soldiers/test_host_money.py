"""Costs of agents on a real host: budgets end turns, usage limits park runs, and no cost is lost."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from kingdom.soldiers.agents.port import Agent, AgentGone, TurnAnswer, TurnQuestion
from kingdom.soldiers.host import running_commands
from kingdom.soldiers.turns import metered_turns
from kingdom.soldiers.turns.turn import take_turn
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.resources.template import OverBudget, RunPolicy
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue, FromBase
from tests.integration.soldiers.host_scene import ANNA, OUTLINE, HostScene, task, work
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)
COSTLY: tuple[dict[str, Any], ...] = ({"write": "began"}, {"cost": 0.75}, {"cost": 0.5})


def spent_in_transcripts(scene: HostScene, workflow: Workflow) -> float:
    """Return the costs in the transcripts of a run, the last one of each turn."""
    turns: dict[str, float] = {}
    for each in workflow.works:
        for entry in scene.transcript(each):
            if "costUsd" in entry:
                turns[entry["prompt"]] = entry["costUsd"]
    return sum(turns.values())


async def test_a_run_that_hits_its_budget_stops_within_the_turn_and_continues_with_more(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("dear")
    steps = (
        *COSTLY,
        *point.steps,
        {"write": "app/done.txt", "text": "{reply}"},
        {"cost": 0.25},
        {"answer": "done"},
    )
    workflow = await scene.begin(work("dear", task(*steps)), policy=RunPolicy(budget_usd=1.0))
    awaiting = await scene.until(workflow, WorkflowStatus.AWAITING)
    assert awaiting.question is not None
    assert awaiting.question.text.endswith("Should it go on with another $1.00?")
    assert awaiting.cost_usd == spent_in_transcripts(scene, awaiting) == 1.25
    assert scene.processes() == []
    assert not (scene.tree(awaiting) / "done.txt").exists()

    point.release()
    await lifecycle.resume(scene.bus, workflow.id, Continue("go on"), actor=ANNA)
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert completed.works[0].agent.session == awaiting.works[0].agent.session
    assert (scene.tree(completed) / "done.txt").exists()
    assert completed.cost_usd == spent_in_transcripts(scene, completed) == 1.5
    began = [entry for entry in scene.transcript(completed.works[0]) if entry.get("does") == {"write": "began"}]
    assert len(began) == 1


async def test_a_run_that_hits_its_budget_fails_if_its_policy_says_so(scene: HostScene) -> None:
    await scene.start_host()
    policy = RunPolicy(budget_usd=1.0, over_budget=OverBudget.STOP)
    workflow = await scene.begin(work("dear", task(*COSTLY, {"hang": True})), policy=policy)
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert failed.reason == "This run has cost $1.25 of its budget of $1.00"


async def test_a_run_at_the_limit_of_its_vendor_frees_its_slot_and_continues_by_itself(scene: HostScene) -> None:
    await scene.start_host(slots=1)
    limited = await scene.begin(work("one", task({"cost": 0.5}, {"usage_limit": 3600}, {"answer": "at last"})))
    parked = await scene.until(limited, WorkflowStatus.AWAITING)
    assert parked.reason.startswith("usage limit reached; it goes on by itself at 20")
    assert (parked.question, parked.cost_usd, scene.processes()) == (None, 0.5, [])

    other = await scene.begin(work("two", task({"answer": "in between"})))
    await scene.until(other, WorkflowStatus.COMPLETED)
    assert await scene.show(limited) == parked
    await scene.fall_due(limited)
    completed = await scene.until_true(limited, lambda now: now.status is WorkflowStatus.COMPLETED)
    assert completed.works[0].agent.session == parked.works[0].agent.session
    assert completed.parked_until is None


async def test_a_parked_run_continues_even_if_its_host_was_restarted(scene: HostScene) -> None:
    host = await scene.start_host()
    workflow = await scene.begin(work("one", task({"usage_limit": 3600}, {"answer": "at last"})))
    await scene.until(workflow, WorkflowStatus.AWAITING)
    await scene.stop_host(host)
    await scene.start_host()
    await scene.fall_due(workflow)
    completed = await scene.until_true(workflow, lambda now: now.status is WorkflowStatus.COMPLETED)
    assert completed.works[0].tasks[0].query.attempt == 2


@pytest.mark.parametrize(
    "end",
    [{"fail": "no"}, {"crash": 3}, {"write": "result.json", "text": '{"status": "failed", "error": "no"}'}],
    ids=["failed", "crashed", "reported"],
)
async def test_the_cost_of_a_failed_turn_counts(scene: HostScene, end: dict[str, Any]) -> None:
    await scene.start_host()
    workflow = await scene.begin(work("one", task({"cost": 0.5}, end)))
    failed = await scene.until(workflow, WorkflowStatus.FAILED)
    assert failed.cost_usd == spent_in_transcripts(scene, failed) == 0.5


async def test_the_cost_of_a_turn_is_reported_before_the_end_of_its_agent(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(agent: Agent, *turn: Any, **more: Any) -> TurnAnswer | TurnQuestion:
        try:
            return await take_turn(agent, *turn, **more)
        except AgentGone:
            await agent.wait_for_end()
            # Let all other tasks that wait for the end of the agent run first.
            for _ in range(100):
                await asyncio.sleep(0)
            raise

    monkeypatch.setattr(metered_turns, "take_turn", slowly)
    await scene.start_host()
    workflow = await scene.begin(work("one", task({"cost": 0.5}, {"crash": 3})))
    assert (await scene.until(workflow, WorkflowStatus.FAILED)).cost_usd == 0.5
    logged = [entry.type for entry in await scene.logged(workflow, answers.AgentSpent, answers.AgentError)]
    assert logged == [answers.AgentSpent.__name__, answers.AgentError.__name__]


async def test_the_cost_of_a_task_with_a_report_counts_once(scene: HostScene) -> None:
    await scene.start_host()
    workflow = await scene.begin(
        work("one", task({"cost": 0.5}, {"report": "# All"}, report_outline=OUTLINE), task({"cost": 0.25}))
    )
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert completed.cost_usd == spent_in_transcripts(scene, completed) == 0.75


async def test_the_cost_of_a_cancelled_turn_counts(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("here")
    workflow = await scene.begin(work("one", task({"cost": 0.5}, *point.steps)))
    await point.reached()
    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    cancelled = await scene.until(workflow, WorkflowStatus.CANCELLED)
    assert cancelled.cost_usd == 0.5


async def test_the_cost_of_a_turn_that_is_looked_up_after_a_pause_counts_once(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_commands, "GRACE", timedelta(seconds=PATIENCE_SECONDS))
    await scene.start_host()
    point = scene.wait_point("here")
    workflow = await scene.begin(work("one", task({"cost": 0.5}, *point.steps, {"cost": 0.25}, {"fail": "no"})))
    await point.reached()
    await lifecycle.pause(scene.bus, workflow.id, actor=ANNA)
    point.release()
    paused = await scene.until(workflow, WorkflowStatus.PAUSED)
    assert paused.cost_usd == 0.75
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    failed = await scene.until_true(workflow, lambda now: now.status is WorkflowStatus.FAILED)
    assert failed.cost_usd == spent_in_transcripts(scene, failed) == 0.75


async def test_the_cost_of_turns_that_a_rollback_undoes_counts(scene: HostScene) -> None:
    await scene.start_host()
    once = {"fail": "no", "first_time_only": True}
    workflow = await scene.begin(work("one", task({"cost": 0.5}, once)))
    await scene.until(workflow, WorkflowStatus.FAILED)
    await lifecycle.resume(scene.bus, workflow.id, FromBase(), actor=ANNA)
    failed = await scene.until_true(workflow, lambda now: now.roll_backs == 1 and now.status is WorkflowStatus.FAILED)
    assert failed.cost_usd == 1.0
