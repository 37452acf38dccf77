"""Pauses, cancellations and approvals: a request takes effect when the host confirms that nothing runs."""

import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.status import (
    AgentStatus,
    QueryStatus,
    ReportStatus,
    TaskStatus,
    WorkflowStatus,
    WorkStatus,
)
from kingdom.workflow.model.steps.operations import (
    Auto,
    Continue,
    FromBase,
    FromCheckpoint,
    cancel,
    pause,
    resume,
    start,
)
from tests.unit.workflow.model.host import agent_of, ask, fail, reconciled, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work


def querying() -> Run:
    run = started()
    run.succeed(commands.StartAgent)
    return run


def test_a_pause_is_requested_first_and_takes_effect_when_the_agent_has_stopped() -> None:
    run = querying()
    assert run.do(pause) == ["WorkflowStopRequested"]
    assert run.workflow.status is WorkflowStatus.RUNNING
    names = run.succeed(commands.StopAgent)
    assert names == ["WorkStatusChanged", "WorkflowStatusChanged", "WorkPaused", "WorkflowPaused"]
    assert (run.workflow.status, run.work(0).status) == (WorkflowStatus.PAUSED, WorkStatus.PAUSED)


def test_a_response_that_overtakes_the_stop_counts_and_nothing_more_is_sent() -> None:
    run = querying()
    run.do(pause)
    assert run.succeed(commands.SendQuery) == ["TaskCompleted", "WorkStatusChanged"]
    assert run.commanded() == ["StopAgent"]
    run.succeed(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.PAUSED


def test_a_query_that_fails_because_its_agent_is_stopping_is_unknown_not_failed() -> None:
    run = querying()
    run.do(pause)
    assert run.fail(commands.SendQuery) == []
    run.succeed(commands.StopAgent)
    assert (run.workflow.status, run.task(0, 0).query.status) == (WorkflowStatus.PAUSED, QueryStatus.UNKNOWN)


def test_a_report_that_is_interrupted_is_rewritten() -> None:
    run = started(template(work("analyse", task(report=True))))
    run.until(commands.GenerateReport)
    run.do(pause)
    run.fail(commands.GenerateReport)
    run.succeed(commands.StopAgent)
    assert run.task(0, 0).report.status is ReportStatus.PENDING
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    assert run.take(commands.GenerateReport).attempt == 2


def test_an_agent_that_fails_while_it_is_stopped_counts_as_stopped() -> None:
    run = querying()
    run.do(pause)
    run.fail(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.PAUSED


def test_an_agent_can_be_stopped_while_it_starts() -> None:
    run = started()
    run.do(pause)
    assert run.succeed(commands.StartAgent) == ["WorkStatusChanged", "WorkStarted"]
    run.succeed(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.PAUSED
    assert run.open == []


@pytest.mark.parametrize("kind", [commands.VerifyWork, commands.TakeCheckpoint])
def test_a_pause_waits_until_a_work_that_is_being_finished_has_its_checkpoint(kind: type[commands.HostCommand]) -> None:
    run = querying()
    run.until(kind)
    run.do(pause)
    assert "StopAgent" not in run.commanded()
    run.finish()
    assert run.workflow.status is WorkflowStatus.PAUSED
    assert [each.is_finished for each in run.workflow.works] == [True, False, False]


def test_a_pause_without_remaining_work_ends_in_completion() -> None:
    run = querying()
    run.until(commands.TakeCheckpoint, 2)
    run.do(pause)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_failing_check_is_stronger_than_a_pause() -> None:
    run = querying()
    run.until(commands.VerifyWork)
    run.do(pause)
    run.fail(commands.VerifyWork)
    assert run.finish().status is WorkflowStatus.FAILED


def test_a_check_that_the_policy_retries_is_retried_after_the_pause() -> None:
    run = started(retries=1)
    run.until(commands.VerifyWork)
    run.do(pause)
    run.fail(commands.VerifyWork)
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.PAUSED
    run.do(resume, Continue())
    assert run.until(commands.VerifyWork).attempt == 2


def test_pausing_twice_changes_nothing() -> None:
    run = querying()
    run.do(pause)
    assert run.do(pause) == []
    assert run.ignored == "this was already requested: a person paused it"
    assert run.commanded() == ["SendQuery", "StopAgent"]


def test_a_run_that_is_being_cancelled_cannot_be_paused() -> None:
    run = querying()
    run.do(cancel)
    with pytest.raises(IllegalTransition, match="workflow wf-1 is RUNNING and about to be cancelled: cannot pause it"):
        run.do(pause)


def test_cancel_interrupts_at_once_and_cancels_what_is_not_completed() -> None:
    run = querying()
    run.succeed(commands.SendQuery)
    assert run.do(cancel) == ["WorkflowStopRequested"]
    assert run.commanded() == ["SendQuery", "InterruptAgent"]
    names = run.succeed(commands.InterruptAgent)
    assert [name for name in names if "Status" not in name] == 3 * ["WorkCancelled"] + ["WorkflowCancelled"]
    assert run.workflow.status is WorkflowStatus.CANCELLED
    assert [each.status for each in run.workflow.works] == [WorkStatus.CANCELLED] * 3
    assert [each.status for each in run.work(0).tasks] == [TaskStatus.COMPLETED, TaskStatus.CANCELLED]


def test_cancel_turns_a_gentle_stop_into_an_interrupt() -> None:
    run = querying()
    run.do(pause)
    run.do(cancel)
    assert run.commanded() == ["SendQuery", "StopAgent", "InterruptAgent"]
    run.succeed(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.CANCELLED


def test_cancel_and_a_response_in_either_order_end_the_same_way() -> None:
    ends = []
    for cancel_first in (True, False):
        run = started(template(work("analyse", task())))
        run.succeed(commands.StartAgent)
        response = succeed(run.take(commands.SendQuery))
        if cancel_first:
            run.do(cancel)
            run.receive(*response)
        else:
            run.receive(*response)
            run.do(cancel)
            run.take(commands.VerifyWork)
        run.succeed(commands.InterruptAgent)
        ends.append((run.workflow.status, run.work(0).status, run.task(0, 0).status, run.open))
    assert ends == [(WorkflowStatus.CANCELLED, WorkStatus.CANCELLED, TaskStatus.COMPLETED, [])] * 2


@pytest.mark.parametrize("checkpoint_first", [True, False])
def test_cancel_during_a_checkpoint_keeps_the_completed_work_and_its_checkpoint(*, checkpoint_first: bool) -> None:
    run = querying()
    run.until(commands.TakeCheckpoint)
    run.do(cancel)
    order: list[type[commands.HostCommand]] = [commands.TakeCheckpoint, commands.InterruptAgent]
    for kind in order if checkpoint_first else reversed(order):
        run.succeed(kind)
    assert run.workflow.status is WorkflowStatus.CANCELLED
    assert [each.status for each in run.workflow.works] == ["COMPLETED", "CANCELLED", "CANCELLED"]
    assert len(run.workflow.checkpoints) == 1


def test_cancel_while_preparing_waits_for_the_checkouts() -> None:
    run = Run()
    run.do(start)
    run.do(cancel)
    assert run.workflow.status is WorkflowStatus.PREPARING
    run.succeed(commands.PrepareResources)
    assert (run.workflow.status, run.open) == (WorkflowStatus.CANCELLED, [])


def test_cancel_while_rolling_back_waits_for_the_rollback() -> None:
    run = querying()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Auto())
    run.do(cancel)
    assert run.status() is WorkflowStatus.RESUMING
    run.succeed(commands.RollBack)
    assert run.status() is WorkflowStatus.CANCELLED


@pytest.mark.parametrize("answered", [False, True])
def test_cancelling_twice_changes_nothing(*, answered: bool) -> None:
    run = querying()
    run.do(cancel)
    if answered:
        run.fail(commands.SendQuery)
    assert run.do(cancel) == []
    assert run.commanded().count("InterruptAgent") == 1


def test_a_gate_asks_a_person_after_the_checkpoint_and_continues_when_resumed() -> None:
    run = started(template(work("analyse", pause_after=True), work("build")))
    run.until(commands.TakeCheckpoint)
    assert run.succeed(commands.TakeCheckpoint) == ["WorkflowStatusChanged", "WorkflowAwaiting"]
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.AWAITING, "approval after analyse")
    assert run.open == []
    assert run.do(resume, Continue()) == ["WorkflowStatusChanged", "WorkflowStatusChanged", "WorkflowResumed"]
    assert run.take(commands.StartAgent).work_id == "wf-1-w2"


def test_only_a_resume_at_the_gate_passes_it() -> None:
    run = started(template(work("analyse", pause_after=True), work("build")))
    run.until(commands.TakeCheckpoint)
    run.do(pause)
    run.finish()
    assert run.status() is WorkflowStatus.PAUSED
    run.do(resume, Continue())
    assert (run.status(), run.workflow.work_to_approve_id) == (WorkflowStatus.AWAITING, "wf-1-w1")
    run.do(resume, Auto())
    run.succeed(commands.RollBack)
    assert run.take(commands.StartAgent).work_id == "wf-1-w2"


def test_a_gate_after_the_last_work_asks_before_completion() -> None:
    run = started(template(work("analyse", pause_after=True)))
    run.finish()
    assert run.workflow.status is WorkflowStatus.AWAITING
    assert run.do(resume, Continue())[-1] == "WorkflowCompleted"


def test_a_gate_that_was_passed_asks_again_after_its_work_was_done_again() -> None:
    run = started(template(work("analyse"), work("build", pause_after=True), work("check")))
    run.finish()
    first = run.workflow.checkpoints[0]
    run.do(resume, Continue())
    run.until(commands.SendQuery, 2)
    run.fail(commands.SendQuery)
    run.finish()
    run.do(resume, FromCheckpoint(first.id))
    run.finish()
    assert run.workflow.status is WorkflowStatus.AWAITING


def test_the_reply_to_a_question_is_sent_with_the_continued_query_until_a_rollback() -> None:
    run = querying()
    run.receive(ask(run.take(commands.SendQuery), "blue or green?"))
    run.succeed(commands.StopAgent)
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.AWAITING, "blue or green?")
    run.do(resume, Continue(reply="green"))
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    assert (sent.continues, sent.reply) == (True, "green")
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    run.receive(reconciled(run.take(commands.SendQuery), answers.TranscriptFinding.UNFINISHED))
    again = run.take(commands.SendQuery)
    assert (again.continues, again.reply) == (True, "green")
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, FromBase())
    run.succeed(commands.RollBack)
    run.succeed(commands.StartAgent)
    restarted = run.take(commands.SendQuery)
    assert (restarted.continues, restarted.reply) == (False, "")


def test_an_agent_that_ends_without_an_answer_fails_the_run() -> None:
    run = querying()
    run.receive(*succeed(agent_of("wf-1-w1")))
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.FAILED, "the agent ended without an answer")


def test_an_agent_that_fails_after_its_work_was_verified_does_not_fail_the_run() -> None:
    run = querying()
    command = run.until(commands.TakeCheckpoint)
    run.receive(fail(agent_of(command.work_id)))
    assert (run.work(0).agent.status, run.work(0).status) == (AgentStatus.ERROR, WorkStatus.COMPLETED)
    assert run.finish().status is WorkflowStatus.COMPLETED
