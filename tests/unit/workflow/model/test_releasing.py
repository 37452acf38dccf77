"""A checkout that could not be removed is remembered with the reason, and its release is asked for again."""

from typing import Any

import pytest

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import delete, prepare, release, release_remaining_trees, start
from kingdom.workflow.model.steps.stale_commands import why_stale
from tests.unit.workflow.model.host import fail
from tests.unit.workflow.model.scene import APP, LIB, Run, started, task, template, work


def not_released() -> Run:
    """Return an ended run whose only checkout could not be removed."""
    run = started(template(work("only", task()), git_refs=(APP,)))
    run.finish()
    run.do(release)
    run.receive(fail(run.take(commands.ReleaseWorkTree), "disk full"))
    return run


def test_a_release_that_failed_is_remembered_with_its_reason_and_awaited_no_more() -> None:
    run = started(template(work("only", task()), git_refs=(APP,)))
    run.finish()
    run.do(release)
    command = run.take(commands.ReleaseWorkTree)
    assert why_stale(run.workflow, command) is None
    run.receive(fail(command, "disk full"))
    [tree] = run.workflow.work_trees
    assert (tree.status, tree.releasing, tree.error) == (WorkTreeStatus.PENDING_RELEASE, False, "disk full")
    assert why_stale(run.workflow, command) == "attempt 1 of ReleaseWorkTree is over"
    run.receive(fail(command, "late"))
    assert run.ignored == f"no release of WorkTree {tree.id} is in progress"


@pytest.mark.parametrize("operation", [release, delete, release_remaining_trees])
def test_a_release_that_failed_can_be_asked_for_again(operation: Any) -> None:
    run = not_released()
    run.do(operation)
    run.succeed(commands.ReleaseWorkTree)
    [tree] = run.workflow.work_trees
    assert (tree.status, tree.error) == (WorkTreeStatus.RELEASED, "")


def test_the_remaining_checkouts_of_a_deleted_run_can_be_released() -> None:
    run = not_released()
    run.do(delete)
    run.receive(fail(run.take(commands.ReleaseWorkTree), "disk still full"))
    run.do(release_remaining_trees)
    run.succeed(commands.ReleaseWorkTree)
    assert run.workflow.work_trees[0].status is WorkTreeStatus.RELEASED


def test_a_checkout_that_could_not_be_removed_in_between_is_tried_again_at_the_end() -> None:
    run = Run(template(work("only", task()), git_refs=(APP, LIB)))
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    run.do(modify, Modification(git_refs=(APP,)))
    run.receive(fail(run.take(commands.ReleaseWorkTree)))
    run.do(start)
    run.finish()
    assert [tree.status for tree in run.workflow.work_trees] == [WorkTreeStatus.READY, WorkTreeStatus.RELEASED]


def test_a_repository_added_again_after_a_failed_release_is_checked_out_again() -> None:
    run = Run()
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    run.do(modify, Modification(git_refs=(APP,)))
    run.receive(fail(run.take(commands.ReleaseWorkTree), "half gone"))
    run.do(modify, Modification(git_refs=(APP, LIB)))
    assert [tree.work_tree_id for tree in run.take(commands.PrepareResources).trees] == ["wf-1-tree3"]
    assert run.workflow.status is WorkflowStatus.PREPARING
