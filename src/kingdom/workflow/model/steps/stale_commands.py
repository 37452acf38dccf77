"""Whether a command still counts when its host takes it up: the run may have gone another way meanwhile."""

from collections.abc import Callable, Mapping
from typing import Any

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    VerificationStatus,
    WorkTreeStatus,
)


def why_stale(workflow: Workflow, command: commands.HostCommand) -> str | None:
    """Return why a command is over, or None where the run waits for its answer."""
    placement = workflow.placement
    if placement is None or (command.host, command.epoch) != (placement.host, placement.epoch):
        now = f"{placement.host}, epoch {placement.epoch}" if placement else "nowhere"
        return f"it is for {command.host}, epoch {command.epoch}, and the run is placed on {now}"
    name = type(command).__name__
    return None if _WAITED_FOR[type(command)](workflow, command) else f"attempt {command.attempt} of {name} is over"


def _preparing(workflow: Workflow, command: commands.PrepareResources) -> bool:
    return any(
        tree.status is WorkTreeStatus.CREATING and tree.attempt == command.attempt for tree in workflow.work_trees
    )


def _starting(workflow: Workflow, command: commands.StartAgent) -> bool:
    work = workflow.find_work(command.work_id)
    return work is not None and _agent(work, command.attempt, AgentStatus.STARTING)


def _querying(workflow: Workflow, command: commands.SendQuery) -> bool:
    task = _task_at_work(workflow, command)
    if task is None or task.query.attempt != command.attempt:
        return False
    return task.query.reconciling if command.reconcile else task.query.status is QueryStatus.SENT


def _reporting(workflow: Workflow, command: commands.GenerateReport) -> bool:
    task = _task_at_work(workflow, command)
    return task is not None and task.report.attempt == command.attempt and task.report.status is ReportStatus.GENERATING


def _verifying(workflow: Workflow, command: commands.VerifyWork) -> bool:
    work = workflow.find_work(command.work_id)
    if work is None or not _agent(work, command.agent_attempt, AgentStatus.RUNNING):
        return False
    return work.verification.attempt == command.attempt and work.verification.status is VerificationStatus.RUNNING


def _checkpointing(workflow: Workflow, command: commands.TakeCheckpoint) -> bool:
    work = workflow.find_work(command.work_id)
    return (
        work is not None
        and work.checkpointing.attempt == command.attempt
        and work.checkpointing.status is CheckpointStatus.TAKING
    )


def _stopping(workflow: Workflow, command: commands.StopAgent | commands.InterruptAgent) -> bool:
    work = workflow.find_work(command.work_id)
    return work is not None and work.agent.alive and work.agent.attempt == command.attempt


def _rolling_back(workflow: Workflow, command: commands.RollBack) -> bool:
    resumption = workflow.resumption
    return resumption is not None and resumption.in_flight and workflow.roll_backs == command.attempt


def _releasing(workflow: Workflow, command: commands.ReleaseWorkTree) -> bool:
    tree = workflow.find_tree(command.work_tree_id)
    return tree is not None and tree.status is WorkTreeStatus.PENDING_RELEASE and tree.releasing


def _agent(work: Work, attempt: int, status: AgentStatus) -> bool:
    """Tell whether this attempt is in a state and nobody asked it to end."""
    return work.agent.attempt == attempt and work.agent.status is status and work.agent.stopping is None


def _task_at_work(workflow: Workflow, command: commands.SendQuery | commands.GenerateReport) -> Task | None:
    work = workflow.find_work(command.work_id)
    if work is None or not _agent(work, command.agent_attempt, AgentStatus.RUNNING):
        return None
    return work.find_task(command.task_id)


_WAITED_FOR: Mapping[type[commands.HostCommand], Callable[[Workflow, Any], bool]] = {
    commands.PrepareResources: _preparing,
    commands.StartAgent: _starting,
    commands.SendQuery: _querying,
    commands.GenerateReport: _reporting,
    commands.VerifyWork: _verifying,
    commands.TakeCheckpoint: _checkpointing,
    commands.StopAgent: _stopping,
    commands.InterruptAgent: _stopping,
    commands.RollBack: _rolling_back,
    commands.ReleaseWorkTree: _releasing,
}
