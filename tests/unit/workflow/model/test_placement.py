"""A run belongs to one host at a time. If its host is lost, it continues elsewhere from its checkpoint or base."""

import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import WorkflowStatus, WorkStatus, WorkTreeStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import Auto, Continue, cancel, pause, prepare, resume, start
from kingdom.workflow.model.steps.placement import place
from tests.unit.workflow.model.scene import APP, LIB, Run, started

SAME = Placement(host="host-a", epoch=2)
OTHER = Placement(host="host-b", epoch=2)


def in_second_work() -> Run:
    run = started()
    run.until(commands.SendQuery, 1)
    run.open.clear()
    return run


def test_a_run_whose_host_is_lost_continues_elsewhere_after_its_last_checkpoint() -> None:
    run = in_second_work()
    assert run.do(place, OTHER)[0] == "WorkflowPlaced"
    assert run.workflow.status is WorkflowStatus.RESUMING
    run.succeed(commands.PrepareResources)
    command = run.until(commands.RollBack)
    assert (command.host, command.epoch, command.checkpoint_id) == ("host-b", 2, "wf-1-w1-c1")
    run.succeed(commands.RollBack)
    start = run.until(commands.StartAgent)
    assert (start.host, start.work_id, start.session) == ("host-b", "wf-1-w2", None)
    run.until(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.open.clear()
    run.do(resume, Continue())
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_on_the_same_host_a_new_epoch_continues_in_the_session() -> None:
    run = in_second_work()
    run.do(place, SAME)
    start = run.until(commands.StartAgent)
    assert (start.epoch, start.session, start.work_id) == (2, "session-1", "wf-1-w2")
    run.succeed(commands.StartAgent)
    assert run.take(commands.SendQuery).reconcile


@pytest.mark.parametrize("kind", [commands.VerifyWork, commands.TakeCheckpoint])
def test_an_interrupted_command_is_sent_again_under_the_new_epoch(kind: type[commands.HostCommand]) -> None:
    run = started()
    first = run.until(kind)
    run.open.clear()
    run.do(place, SAME)
    again = run.until(kind)
    assert (again.epoch, again.attempt) == (2, first.attempt + 1)


def test_unfinished_checkouts_are_requested_again() -> None:
    run = Run()
    run.do(prepare)
    run.open.clear()
    run.do(place, SAME)
    assert run.until(commands.PrepareResources).attempt == 2
    run.succeed(commands.PrepareResources)
    assert run.workflow.status is WorkflowStatus.READY


def test_a_prepared_run_is_prepared_again_on_another_host() -> None:
    run = Run()
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    run.do(place, OTHER)
    assert run.workflow.status is WorkflowStatus.PREPARING
    assert run.take(commands.PrepareResources).host == "host-b"


def test_a_run_that_moved_before_its_start_can_be_continued_in_its_session() -> None:
    run = Run()
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    run.do(place, OTHER)
    run.succeed(commands.PrepareResources)
    run.do(start)
    run.succeed(commands.StartAgent)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Continue())
    assert run.take(commands.StartAgent).session == "session-1"


def test_a_requested_stop_takes_effect_once_the_host_is_lost() -> None:
    for operation, end in ((pause, WorkflowStatus.PAUSED), (cancel, WorkflowStatus.CANCELLED)):
        run = in_second_work()
        run.do(operation)
        run.do(place, OTHER)
        assert run.workflow.status is end


def test_a_work_without_a_checkpoint_is_lost_with_its_host_even_if_it_was_verified() -> None:
    run = started()
    run.until(commands.TakeCheckpoint)
    run.do(pause)
    run.open.clear()
    run.do(place, OTHER)
    assert (run.workflow.status, run.work(0).status) == (WorkflowStatus.PAUSED, WorkStatus.COMPLETED)
    run.do(resume, Auto())
    run.succeed(commands.PrepareResources)
    run.succeed(commands.RollBack)
    assert run.take(commands.StartAgent).work_id == "wf-1-w1"


def test_a_session_that_stayed_on_a_lost_host_cannot_be_continued() -> None:
    run = in_second_work()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(place, OTHER)
    with pytest.raises(IllegalTransition, match="PAUSED and its session is lost: cannot continue it"):
        run.do(resume, Continue())
    run.do(resume, Auto())
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_rollback_on_a_lost_host_is_requested_again_on_the_next() -> None:
    run = in_second_work()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Auto())
    run.take(commands.RollBack)
    run.do(place, OTHER)
    run.succeed(commands.PrepareResources)
    command = run.take(commands.RollBack)
    assert (command.host, command.attempt) == ("host-b", 2)


def test_a_release_is_repeated_on_the_same_host_and_not_needed_on_another() -> None:
    for placement, status, again in (
        (SAME, WorkTreeStatus.PENDING_RELEASE, ["ReleaseWorkTree"]),
        (OTHER, WorkTreeStatus.RELEASED, []),
    ):
        run = Run()
        run.do(prepare)
        run.succeed(commands.PrepareResources)
        run.do(modify, Modification(git_refs=(APP,)))
        run.take(commands.ReleaseWorkTree)
        run.do(place, placement)
        tree = next(tree for tree in run.workflow.work_trees if tree.ref == LIB)
        assert tree.status is status
        assert [name for name in run.commanded() if name == "ReleaseWorkTree"] == again


def lose_host(run: Run, times: int = 1) -> None:
    """Restart the host at each query."""
    for _ in range(times):
        run.until(commands.SendQuery)
        run.open.clear()
        placement = run.workflow.placement
        assert placement
        run.do(place, Placement(host=placement.host, epoch=placement.epoch + 1))


@pytest.mark.parametrize("host", ["host-a", "host-b"])
def test_a_run_whose_host_is_lost_three_times_in_a_row_fails_and_can_be_resumed(host: str) -> None:
    run = started()
    lose_host(run, 2)
    assert run.workflow.status is WorkflowStatus.RUNNING
    run.until(commands.StartAgent)
    run.open.clear()
    run.do(place, Placement(host=host, epoch=4))
    assert (run.workflow.status, run.commanded()) == (WorkflowStatus.FAILED, [])
    assert run.workflow.reason.startswith(
        "its host was lost 3 times in a row while its agent ran, most recently host-a"
    )
    run.do(resume, Auto())
    run.until(commands.SendQuery)
    lose_host(run, 2)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_completed_task_resets_the_count_of_lost_hosts() -> None:
    run = started()
    for _ in range(4):
        lose_host(run, 2)
        run.until(commands.SendQuery)
        run.succeed(commands.SendQuery)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_hosts_that_are_lost_while_no_agent_runs_do_not_count() -> None:
    run = Run()
    run.do(prepare)
    for epoch in range(2, 8):
        run.open.clear()
        run.do(place, Placement(host="host-a", epoch=epoch))
    run.until(commands.PrepareResources)
    run.finish()
    assert run.workflow.status is WorkflowStatus.READY


def test_a_requested_pause_takes_effect_even_with_the_third_loss() -> None:
    run = started()
    lose_host(run, 2)
    run.until(commands.SendQuery)
    run.do(pause)
    run.do(place, Placement(host="host-a", epoch=4))
    assert run.workflow.status is WorkflowStatus.PAUSED


def test_the_same_placement_again_changes_nothing() -> None:
    run = in_second_work()
    run.do(place, Placement(host="host-a", epoch=1))
    assert run.ignored == "it is already placed on host-a, epoch 1"


def test_an_epoch_only_grows() -> None:
    run = started()
    with pytest.raises(IllegalTransition, match=r"on host-a, epoch 1: cannot place it under epoch 1; .* above 1"):
        run.do(place, Placement(host="host-b", epoch=1))
