"""Decide whether a command is still valid when its host receives it. The run may have changed since it was sent."""

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
    """Return the reason why a command is out of date, or None if the run waits for its answer."""
    placement = workflow.placement
    if placement is None or (command.host, command.epoch) != (placement.host, placement.epoch):
        now = f"{placement.host}, epoch {placement.epoch}" if placement else "nowhere"
        return f"it is for {command.host}, epoch {command.epoch}, and the run is placed on {now}"
    name = type(command).__name__
    return None if _IS_AWAITED[type(command)](workflow, command) else f"attempt {command.attempt} of {name} is over"


def _is_preparing(workflow: Workflow, command: commands.PrepareResources) -> bool:
    return any(
        tree.status is WorkTreeStatus.CREATING and tree.attempt == command.attempt for tree in workflow.work_trees
    )


def _is_starting(workflow: Workflow, command: commands.StartAgent) -> bool:
    work = workflow.find_work(command.work_id)
    return work is not None and _agent_has_status(work, command.attempt, AgentStatus.STARTING)


def _is_querying(workflow: Workflow, command: commands.SendQuery) -> bool:
    task = _task_of_running_agent(workflow, command)
    if task is None or task.query.attempt != command.attempt:
        return False
    return task.query.reconciling if command.reconcile else task.query.status is QueryStatus.SENT


def _is_reporting(workflow: Workflow, command: commands.GenerateReport) -> bool:
    task = _task_of_running_agent(workflow, command)
    return task is not None and task.report.attempt == command.attempt and task.report.status is ReportStatus.GENERATING


def _is_verifying(workflow: Workflow, command: commands.VerifyWork) -> bool:
    work = workflow.find_work(command.work_id)
    if work is None or not _agent_has_status(work, command.agent_attempt, AgentStatus.RUNNING):
        return False
    return work.verification.attempt == command.attempt and work.verification.status is VerificationStatus.RUNNING


def _is_checkpointing(workflow: Workflow, command: commands.TakeCheckpoint) -> bool:
    work = workflow.find_work(command.work_id)
    return (
        work is not None
        and work.checkpointing.attempt == command.attempt
        and work.checkpointing.status is CheckpointStatus.TAKING
    )


def _is_stopping(workflow: Workflow, command: commands.StopAgent | commands.InterruptAgent) -> bool:
    work = workflow.find_work(command.work_id)
    return work is not None and work.agent.alive and work.agent.attempt == command.attempt


def _is_rolling_back(workflow: Workflow, command: commands.RollBack) -> bool:
    resumption = workflow.resumption
    return resumption is not None and resumption.in_flight and workflow.roll_backs == command.attempt


def _is_releasing(workflow: Workflow, command: commands.ReleaseWorkTree) -> bool:
    tree = workflow.find_tree(command.work_tree_id)
    return tree is not None and tree.status is WorkTreeStatus.PENDING_RELEASE and tree.releasing


def _agent_has_status(work: Work, attempt: int, status: AgentStatus) -> bool:
    """Return whether the agent is at this attempt, has this status, and was not told to stop."""
    return work.agent.attempt == attempt and work.agent.status is status and work.agent.stopping is None


def _task_of_running_agent(workflow: Workflow, command: commands.SendQuery | commands.GenerateReport) -> Task | None:
    work = workflow.find_work(command.work_id)
    if work is None or not _agent_has_status(work, command.agent_attempt, AgentStatus.RUNNING):
        return None
    return work.find_task(command.task_id)


_IS_AWAITED: Mapping[type[commands.HostCommand], Callable[[Workflow, Any], bool]] = {
    commands.PrepareResources: _is_preparing,
    commands.StartAgent: _is_starting,
    commands.SendQuery: _is_querying,
    commands.GenerateReport: _is_reporting,
    commands.VerifyWork: _is_verifying,
    commands.TakeCheckpoint: _is_checkpointing,
    commands.StopAgent: _is_stopping,
    commands.InterruptAgent: _is_stopping,
    commands.RollBack: _is_rolling_back,
    commands.ReleaseWorkTree: _is_releasing,
}
