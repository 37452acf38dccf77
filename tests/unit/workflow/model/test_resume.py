"""Resuming a run: after a checkpoint, from base, or in the same session."""

import pytest

from kingdom.errors import IllegalTransition, NotFound
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.messages.events import WorkflowResumed
from kingdom.workflow.model.status import QueryStatus, ReportStatus, WorkflowStatus, WorkStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, FromCheckpoint, ResumeFrom, pause, resume
from tests.unit.workflow.model.scene import APP, DOCS, LIB, Run, started, task, template, work

REPORTED = template(*(work(name, task(report=True), task()) for name in ("analyse", "build", "check")))


def failed_in_third() -> Run:
    """Return a run that failed in its third Work, after two checkpoints."""
    run = started(REPORTED)
    run.until(commands.VerifyWork, 2)
    run.fail(commands.VerifyWork)
    run.finish()
    assert run.workflow.status is WorkflowStatus.FAILED
    return run


def test_auto_rolls_back_to_the_last_checkpoint_and_continues_after_it() -> None:
    run = failed_in_third()
    assert run.do(resume, Auto()) == ["WorkflowStatusChanged"]
    assert run.workflow.status is WorkflowStatus.RESUMING
    command = run.until(commands.RollBack)
    assert command.checkpoint_id == "wf-1-w2-c1"
    assert command.commits == {"wf-1-tree1": "commit-wf-1-w2-c1", "wf-1-tree2": "commit-wf-1-w2-c1"}
    assert command.work_space_ids == ("wf-1-w3-space1",)
    names = run.succeed(commands.RollBack)
    assert names == [
        "WorkSpaceRemoved",
        "WorkReset",
        "WorkStatusChanged",
        "WorkflowStatusChanged",
        "WorkflowResumed",
    ]
    assert run.published[-1] == WorkflowResumed(workflow_id="wf-1", from_work_id="wf-1-w3")
    start = run.take(commands.StartAgent)
    assert (start.work_id, start.session, start.attempt) == ("wf-1-w3", None, 2)
    assert [each.status for each in run.workflow.works] == ["COMPLETED", "COMPLETED", "PENDING"]


def test_an_undone_task_is_new_and_its_reports_are_kept_as_versions() -> None:
    run = failed_in_third()
    run.do(resume, Auto())
    run.succeed(commands.RollBack)
    undone = run.task(2, 0)
    assert (undone.query.status, undone.report.status) == (QueryStatus.PENDING, ReportStatus.PENDING)
    assert (undone.report.file_path, undone.report.versions) == ("", ["reports/wf-1-w3-t1-report-1.md"])
    assert run.finish().status is WorkflowStatus.COMPLETED
    assert run.task(2, 0).report.file_path == "reports/wf-1-w3-t1-report-2.md"


@pytest.mark.parametrize(("how", "first"), [(FromCheckpoint("wf-1-w1-c1"), "wf-1-w2"), (FromBase(), "wf-1-w1")])
def test_a_run_can_resume_from_an_earlier_checkpoint_or_from_its_base(how: ResumeFrom, first: str) -> None:
    run = failed_in_third()
    run.do(resume, how)
    run.succeed(commands.RollBack)
    assert run.take(commands.StartAgent).work_id == first


def test_a_resume_clears_the_reason_of_the_failure() -> None:
    run = failed_in_third()
    assert run.workflow.reason == "broken"
    run.do(resume, Auto())
    assert run.workflow.reason == ""


def test_without_a_checkpoint_auto_goes_back_to_base() -> None:
    run = started()
    run.fail(commands.StartAgent)
    run.do(resume, Auto())
    command = run.take(commands.RollBack)
    assert (command.checkpoint_id, command.commits, command.to_base) == (None, {}, ("wf-1-tree1", "wf-1-tree2"))


def test_continue_keeps_the_session_without_a_rollback() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    run.succeed(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    assert run.do(resume, Continue()) == [
        "WorkflowStatusChanged",
        "WorkflowStatusChanged",
        "WorkflowResumed",
        "WorkStatusChanged",
    ]
    start = run.until(commands.StartAgent)
    assert (start.session, start.attempt, start.work_space_id) == ("session-1", 2, "wf-1-w1-space1")
    assert "RollBack" not in run.commanded()
    begun = run.work(0).started_at
    run.succeed(commands.StartAgent)
    assert run.work(0).started_at == begun


def test_an_unknown_checkpoint_is_refused_with_the_valid_ones() -> None:
    run = failed_in_third()
    before = run.workflow.document()
    with pytest.raises(NotFound, match=r"no valid checkpoint 'nope'; valid are: wf-1-w1-c1, wf-1-w2-c1"):
        run.do(resume, FromCheckpoint("nope"))
    assert run.workflow.document() == before


def test_a_rollback_invalidates_later_checkpoints_and_a_new_one_is_valid() -> None:
    run = failed_in_third()
    run.do(resume, FromCheckpoint("wf-1-w1-c1"))
    run.succeed(commands.RollBack)
    assert [checkpoint.id for checkpoint in run.workflow.valid_checkpoints()] == ["wf-1-w1-c1"]
    run.until(commands.TakeCheckpoint, 1)
    run.fail(commands.TakeCheckpoint)
    run.finish()
    assert [checkpoint.id for checkpoint in run.workflow.valid_checkpoints()] == ["wf-1-w1-c1"]
    run.do(resume, Continue())
    run.finish()
    assert [each.id for each in run.workflow.valid_checkpoints()] == ["wf-1-w1-c1", "wf-1-w2-c3", "wf-1-w3-c1"]
    assert len(run.workflow.checkpoints) == 4


def test_a_checkpoint_is_valid_while_the_definitions_up_to_its_work_are_unchanged() -> None:
    run = failed_in_third()
    run.work(2).definition = work("something else")
    assert len(run.workflow.valid_checkpoints()) == 2
    run.work(1).definition = work("something else")
    assert [checkpoint.id for checkpoint in run.workflow.valid_checkpoints()] == ["wf-1-w1-c1"]


def test_a_repository_added_later_goes_back_to_base_and_a_removed_one_is_ignored() -> None:
    run = failed_in_third()
    run.do(modify, Modification(git_refs=(APP, DOCS)))
    run.do(resume, Auto())
    assert [tree.git_id for tree in run.until(commands.PrepareResources).trees] == ["git-docs"]
    command = run.until(commands.RollBack)
    assert (set(command.commits), command.to_base) == ({"wf-1-tree1"}, ("wf-1-tree3",))


def test_a_failed_rollback_changes_nothing_and_can_be_asked_for_again() -> None:
    run = failed_in_third()
    run.do(resume, Auto())
    run.fail(commands.RollBack)
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.FAILED, "rollback failed: broken")
    assert run.work(2).status is WorkStatus.FAILED
    run.do(resume, Auto())
    assert run.until(commands.RollBack).attempt == 2
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_lost_session_cannot_be_continued_and_the_other_ways_are_named() -> None:
    run = started(template(git_refs=(LIB,)))
    run.succeed(commands.StartAgent)
    run.fail(commands.SendQuery)
    run.succeed(commands.StopAgent)
    run.work(0).agent.session = None
    with pytest.raises(IllegalTransition, match="resume auto, resume from a checkpoint, resume from base"):
        run.do(resume, Continue())
