"""A cancel at the same time as another change: the run ends consistently in both orders."""

from pathlib import Path

import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import QueryStatus, WorkflowStatus, WorkStatus
from tests.integration.soldiers.host_barriers import Barrier, accepts, publishes
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.integration.soldiers.sources import run
from tests.unit.workflow.model.invariants import contradictions


@pytest.mark.both_stores
async def test_an_answer_that_arrives_after_a_cancel_is_still_recorded(scene: HostScene) -> None:
    barrier = Barrier(lambda transaction: publishes(transaction, answers.QueryResponded.__name__))
    cancelled = await _cancel_at(scene, barrier)
    assert cancelled.works[0].tasks[0].query.status is QueryStatus.RESPONDED


@pytest.mark.parametrize("command", [commands.SendQuery, commands.GenerateReport, commands.VerifyWork])
async def test_a_cancel_after_a_command_was_accepted_cancels_the_work_without_a_checkpoint(
    scene: HostScene, command: type[commands.HostCommand]
) -> None:
    barrier = Barrier(lambda transaction: accepts(transaction, command))
    cancelled = await _cancel_at(scene, barrier)
    assert cancelled.works[0].status is WorkStatus.CANCELLED
    assert cancelled.checkpoints == []


@pytest.mark.both_stores
async def test_an_agent_whose_start_is_overtaken_by_a_cancel_is_never_started(scene: HostScene) -> None:
    barrier = Barrier(lambda transaction: accepts(transaction, commands.StartAgent))
    await scene.start_host(wrap=barrier.wrap)
    workflow = await scene.begin(writes("one"))
    await barrier.reached()
    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    await scene.until(workflow, WorkflowStatus.CANCELLED)
    barrier.open()

    await scene.until_all_answered()
    assert scene.processes() == []
    assert not list(scene.folders().sessions.iterdir())


@pytest.mark.parametrize("held", ["the answer", "the command"])
async def test_a_checkpoint_that_is_being_taken_is_finished_before_a_run_is_cancelled(
    scene: HostScene, held: str
) -> None:
    barrier = Barrier(
        lambda transaction: (
            publishes(transaction, answers.CheckpointCreated.__name__)
            if held == "the answer"
            else accepts(transaction, commands.TakeCheckpoint)
        )
    )
    cancelled = await _cancel_at(scene, barrier)

    assert [work.status for work in cancelled.works] == [WorkStatus.COMPLETED, WorkStatus.CANCELLED]
    (checkpoint,) = cancelled.checkpoints
    (commit,) = checkpoint.commits.values()
    tree = scene.tree(cancelled)
    assert run("rev-parse", "HEAD", cwd=tree) == commit
    assert run("status", "--porcelain", cwd=tree) == ""
    assert commit in run("for-each-ref", "refs/kingdom/checkpoints", cwd=scene.bare())


async def test_a_cancel_after_the_last_checkpoint_changes_nothing(scene: HostScene) -> None:
    """The step that takes the last checkpoint also ends the run, so a cancel cannot arrive in between."""
    await scene.start_host()
    workflow = await scene.begin(writes("one", report=False))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    before = await scene.record(completed)
    with pytest.raises(IllegalTransition, match="COMPLETED"):
        await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    assert await scene.record(completed) == before


async def _cancel_at(scene: HostScene, barrier: Barrier) -> Workflow:
    """Cancel a run while its host is blocked, continue the host, and return the ended run."""
    await scene.start_host(wrap=barrier.wrap)
    second = task({"write": f"{APP}/two.txt", "text": "by two\n"})
    workflow = await scene.begin(work("one", *writes("one").tasks, verify=("true",)), work("two", second))
    await barrier.reached()
    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    assert (await scene.show(workflow)).stop_request is not None
    barrier.open()
    cancelled = await scene.until(workflow, WorkflowStatus.CANCELLED)
    await scene.until_all_answered()
    assert scene.processes() == []
    assert contradictions(await scene.show(workflow)) == []
    assert not Path(scene.tree(cancelled), "two.txt").exists()
    return cancelled
