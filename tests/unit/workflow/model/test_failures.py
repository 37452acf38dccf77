"""Each failure ends in FAILED once nothing runs, unless the policy tries again."""

import pytest

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.status import AgentStatus, TaskStatus, WorkflowStatus, WorkStatus, WorkTreeStatus
from kingdom.workflow.model.steps.operations import Auto, Continue, cancel, prepare, resume, start
from tests.unit.workflow.model.host import agent_of, fail, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work

ONE = template(work("analyse", task(report=True)), work("build", task()))
OF_A_WORK = [
    commands.StartAgent,
    commands.SendQuery,
    commands.GenerateReport,
    commands.VerifyWork,
    commands.TakeCheckpoint,
]


@pytest.mark.parametrize("kind", OF_A_WORK)
def test_without_retries_a_failure_fails_the_run_with_its_reason(kind: type[commands.HostCommand]) -> None:
    run = started(ONE)
    run.until(kind)
    run.fail(kind)
    run.finish()
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.FAILED, "broken")
    assert run.names()[-1] == "WorkflowFailed"


@pytest.mark.parametrize("kind", OF_A_WORK)
def test_with_one_retry_the_first_failure_is_retried_and_the_second_fails_the_run(
    kind: type[commands.HostCommand],
) -> None:
    run = started(ONE, retries=1)
    first = run.until(kind)
    assert run.fail(kind)[0] == "WorkRetried"
    assert run.until(kind).attempt == first.attempt + 1
    run.fail(kind)
    assert run.finish().status is WorkflowStatus.FAILED


@pytest.mark.parametrize("kind", OF_A_WORK)
def test_a_failed_run_can_be_continued_where_it_failed(kind: type[commands.HostCommand]) -> None:
    run = started(ONE)
    failed = run.until(kind)
    run.fail(kind)
    run.finish()
    run.do(resume, Continue())
    assert run.until(kind).attempt == failed.attempt + 1
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_an_agent_error_is_reported_in_the_documented_order() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    names = run.receive(fail(agent_of("wf-1-w1"), "killed"))
    assert names == ["WorkStatusChanged", "WorkFailed", "WorkflowStatusChanged", "WorkflowFailed"]
    assert (run.work(0).status, run.work(0).agent.status) == (WorkStatus.FAILED, AgentStatus.ERROR)


def test_a_failed_query_stops_its_agent_before_the_run_counts_as_failed() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    names = run.fail(commands.SendQuery)
    assert names == ["TaskFailed", "WorkStatusChanged", "WorkFailed", "WorkflowStopRequested"]
    assert (run.workflow.status, run.work(0).status) == (WorkflowStatus.RUNNING, WorkStatus.FAILED)
    assert run.task(0, 0).status is TaskStatus.FAILED
    assert run.succeed(commands.StopAgent) == ["WorkflowStatusChanged", "WorkflowFailed"]


def test_a_retried_agent_continues_its_session_and_its_query_is_looked_up() -> None:
    run = started(retries=1)
    run.succeed(commands.StartAgent)
    run.take(commands.SendQuery)
    assert run.receive(fail(agent_of("wf-1-w1"))) == ["WorkRetried", "WorkStatusChanged"]
    assert run.until(commands.StartAgent).session == "session-1"
    run.succeed(commands.StartAgent)
    assert run.take(commands.SendQuery).reconcile


def test_commands_to_a_restarted_agent_contain_its_attempt() -> None:
    run = started(template(work("analyse", task(report=True))), retries=1)
    run.fail(commands.StartAgent)
    for kind in (commands.SendQuery, commands.GenerateReport, commands.VerifyWork):
        assert run.until(kind).agent_attempt == 2


def test_a_failed_checkpoint_leaves_its_work_completed() -> None:
    run = started()
    run.until(commands.TakeCheckpoint)
    run.fail(commands.TakeCheckpoint)
    run.finish()
    assert (run.workflow.status, run.work(0).status) == (WorkflowStatus.FAILED, WorkStatus.COMPLETED)
    assert run.workflow.valid_checkpoints() == []


def test_checkouts_are_made_all_or_none() -> None:
    run = Run()
    run.do(prepare)
    command = run.take(commands.PrepareResources)
    run.receive(succeed(command)[0], fail(command, "no space"))
    assert {tree.status for tree in run.workflow.work_trees} == {WorkTreeStatus.FAILED}
    assert (run.workflow.status, run.workflow.reason) == (WorkflowStatus.FAILED, "no checkout of git-lib: no space")


def test_a_resume_repeats_a_failed_preparation_and_starts_the_run_only_if_a_start_had_failed() -> None:
    for operation, end in ((prepare, WorkflowStatus.READY), (start, WorkflowStatus.RUNNING)):
        run = Run()
        run.do(operation)
        run.fail(commands.PrepareResources)
        run.do(resume, Auto())
        assert run.status() is WorkflowStatus.PREPARING
        assert run.until(commands.PrepareResources).attempt == 2
        run.succeed(commands.PrepareResources)
        assert run.workflow.status is end


def test_a_failed_run_can_be_cancelled() -> None:
    run = started()
    run.fail(commands.StartAgent)
    assert run.do(cancel)[-1] == "WorkflowCancelled"
    assert run.work(0).status is WorkStatus.CANCELLED


def test_a_resume_resets_the_retries_of_a_work() -> None:
    run = started(retries=1)
    for _ in range(2):
        run.fail(commands.StartAgent)
    assert run.status() is WorkflowStatus.FAILED
    run.do(resume, Continue())
    run.fail(commands.StartAgent)
    assert run.status() is WorkflowStatus.RUNNING
