"""The events and commands of a run, from start to completion."""

from itertools import pairwise

import msgspec

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.status import TaskStatus, WorkflowStatus, WorkStatus, WorkTreeStatus
from kingdom.workflow.model.steps.operations import cancel, pause, prepare, start
from tests.unit.workflow.model.host import agent_of, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work

# Parts of the events of a run. `PLAIN` is a Task without a report, `REPORTED` is one with a report.
QUERY = ["QuerySent", "TaskStarted", "QueryResponded"]
REPORT = ["ReportGenerationStarted", "ReportGenerated"]
BEGIN = ["WorkSpaceCreated", "AgentStarted", "WorkStatusChanged", "WorkStarted"]
END = ["WorkVerified", "WorkStatusChanged", "WorkCompleted", "AgentStopped", "CheckpointCreated"]
TASK_END = ["TaskCompleted", "WorkStatusChanged"]
PLAIN = [*QUERY, *TASK_END]
REPORTED = [*QUERY, *REPORT, *TASK_END]
PREPARED = ["WorkflowCreated", "WorkflowPlaced", "WorkflowStatusChanged", "WorkTreeCreated", "WorkTreeCreated"]
STARTED = ["WorkflowStatusChanged", "WorkflowStatusChanged", "WorkflowStarted"]
COMPLETED = ["WorkflowStatusChanged", "WorkflowCompleted"]


def play(run: Run) -> None:
    """Answer all commands with success, and stop each agent before its checkpoint as hosts do."""
    while run.open:
        command = run.open.pop(0)
        if isinstance(command, commands.TakeCheckpoint):
            run.receive(*succeed(agent_of(command.work_id)))
        run.receive(*succeed(command))


def test_a_run_of_three_works_with_two_tasks_each_completes_with_the_expected_events() -> None:
    run = Run()
    run.do(start)
    play(run)
    assert run.names() == PREPARED + STARTED + 3 * (BEGIN + PLAIN + PLAIN + END) + COMPLETED
    assert run.workflow.status is WorkflowStatus.COMPLETED
    assert [each.status for each in run.workflow.works] == [WorkStatus.COMPLETED] * 3
    assert [checkpoint.work_id for checkpoint in run.workflow.checkpoints] == ["wf-1-w1", "wf-1-w2", "wf-1-w3"]
    assert run.workflow.ended_at == run.at


def test_a_task_with_a_report_outline_is_completed_only_by_its_report() -> None:
    works = [work(name, task(report=True), task(report=True)) for name in ("analyse", "build", "check")]
    run = Run(template(*works))
    run.do(start)
    play(run)
    assert run.names() == PREPARED + STARTED + 3 * (BEGIN + REPORTED + REPORTED + END) + COMPLETED
    assert run.task(0, 1).report.file_path == "reports/wf-1-w1-t2-report-1.md"


def test_a_later_agent_gets_every_earlier_report() -> None:
    run = started(template(work("analyse", task(report=True)), work("build", task())))
    assert run.until(commands.StartAgent, 1).reports == ("reports/wf-1-w1-t1-report-1.md",)


def test_a_query_is_sent_only_after_the_task_before_is_completed() -> None:
    run = started(template(work("analyse", task("a", report=True), task("b"))))
    run.succeed(commands.StartAgent)
    assert run.take(commands.SendQuery).query == "a"
    assert run.open == []
    [task_a, task_b] = run.work(0).tasks
    assert (task_a.status, task_b.status) == (TaskStatus.RUNNING, TaskStatus.PENDING)


def test_prepare_stops_at_ready_and_start_continues_from_there() -> None:
    run = Run()
    assert run.do(prepare) == ["WorkflowStatusChanged"]
    assert run.workflow.status is WorkflowStatus.PREPARING
    assert [tree.git_id for tree in run.take(commands.PrepareResources).trees] == ["git-app", "git-lib"]
    run = Run()
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    assert run.workflow.status is WorkflowStatus.READY
    assert {tree.status for tree in run.workflow.work_trees} == {WorkTreeStatus.READY}
    assert run.do(start) == ["WorkflowStatusChanged", "WorkflowStarted"]
    assert run.commanded() == ["StartAgent"]


def test_a_run_without_repositories_needs_no_checkout() -> None:
    run = Run(template(git_refs=()))
    run.do(prepare)
    assert (run.workflow.status, run.open) == (WorkflowStatus.READY, [])
    run.do(start)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_every_command_names_its_run_its_host_and_its_epoch() -> None:
    run = started()
    seen: list[commands.HostCommand] = []
    while run.open:
        seen.append(run.open[0])
        run.receive(*succeed(run.open.pop(0)))
    assert {(command.workflow_id, command.host, command.epoch) for command in seen} == {("wf-1", "host-a", 1)}
    assert {command.stream for command in seen} == {"soldier.host-a"}


def test_stop_commands_use_the_control_stream() -> None:
    run = started()
    run.do(pause)
    run.do(cancel)
    streams = {type(command).__name__: command.stream for command in run.open}
    assert streams == {
        "StartAgent": "soldier.host-a",
        "StopAgent": "soldier.host-a.control",
        "InterruptAgent": "soldier.host-a.control",
    }


def test_the_time_limit_of_a_task_wins_over_that_of_its_work() -> None:
    tasks = (task("slow"), msgspec.structs.replace(task("quick"), timeout_seconds=5))
    run = started(template(work("analyse", *tasks, timeout_seconds=600)))
    run.succeed(commands.StartAgent)
    assert run.until(commands.SendQuery).timeout_seconds == 600
    run.succeed(commands.SendQuery)
    assert run.take(commands.SendQuery).timeout_seconds == 5


def test_the_cost_of_a_run_is_the_sum_of_the_costs_of_its_works() -> None:
    run = started()
    run.finish()
    assert [each.cost_usd for each in run.workflow.works] == [0.5, 0.5, 0.5]
    assert run.workflow.cost_usd == 1.5


def test_each_work_starts_and_ends_after_the_one_before() -> None:
    run = started()
    run.finish()
    moments = [moment for each in run.workflow.works for moment in (each.started_at, each.ended_at)]
    assert all(first and then and first < then for first, then in pairwise(moments))
