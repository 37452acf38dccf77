"""Reset the parts of a Work: after its agent ended, for a retry, or for a rollback."""

from kingdom.workflow.model.messages.events import WorkReset, WorkSpaceRemoved
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    VerificationStatus,
)
from kingdom.workflow.model.steps.step import Step


def mark_agent_ended(step: Step, work: Work, status: AgentStatus) -> None:
    """Record that no process of a Work is running.

    An unanswered prompt becomes UNKNOWN. Unfinished reports and checks become PENDING.
    """
    if work.agent.alive:
        step.transition(work.agent, status, work.id)
    work.agent.stopping = None
    if work.verification.status is VerificationStatus.RUNNING:
        step.transition(work.verification, VerificationStatus.PENDING, work.id)
    for task in work.tasks:
        task.query.reconciling = False
        if task.query.status is QueryStatus.SENT:
            step.transition(task.query, QueryStatus.UNKNOWN, task.id)
        if task.report.status is ReportStatus.GENERATING:
            step.transition(task.report, ReportStatus.PENDING, task.id)


def clear_failures(step: Step, work: Work) -> None:
    """Allow another attempt of the failed parts of a Work, in the same session."""
    if work.agent.status is AgentStatus.ERROR:
        step.transition(work.agent, AgentStatus.STOPPED, work.id)
    for task in work.tasks:
        if task.query.status is QueryStatus.FAILED:
            step.transition(task.query, QueryStatus.PENDING, task.id)
        if task.report.status is ReportStatus.FAILED:
            step.transition(task.report, ReportStatus.PENDING, task.id)
    if work.verification.status is VerificationStatus.FAILED:
        step.transition(work.verification, VerificationStatus.PENDING, work.id)
    if work.checkpointing.status is CheckpointStatus.FAILED:
        step.transition(work.checkpointing, CheckpointStatus.PENDING, work.id)


def reset_work(step: Step, work: Work) -> None:
    """Reset a Work that a rollback undoes. Attempt numbers keep growing, and earlier reports are kept as versions."""
    if not work.has_started:
        return
    step.transition(work.agent, AgentStatus.IDLE, work.id)
    work.agent.session = None
    if step.workflow.earlier_session:
        # The session remembers what is undone now.
        work.agent.uses_earlier_session = False
    for task in work.tasks:
        _reset_task(step, task)
    if work.verification.status is not VerificationStatus.PENDING:
        step.transition(work.verification, VerificationStatus.PENDING, work.id)
    if work.checkpointing.status is not CheckpointStatus.PENDING:
        step.transition(work.checkpointing, CheckpointStatus.PENDING, work.id)
    work.checkpointing.checkpoint_id = None
    work.approved = False
    work.petitions.clear()
    work.result = None
    work.started_at = work.ended_at = None
    if work.work_space_id:
        step.emit(WorkSpaceRemoved(work_space_id=work.work_space_id, work_id=work.id))
        work.work_space_id = None
    step.emit(WorkReset(work_id=work.id, workflow_id=step.workflow.id))


def _reset_task(step: Step, task: Task) -> None:
    if task.query.status is not QueryStatus.PENDING:
        step.transition(task.query, QueryStatus.PENDING, task.id)
    task.query.begun = task.query.looped = False
    task.times_parked = 0
    task.query.response = task.query.reply = ""
    if task.report.status not in {ReportStatus.NOT_REQUIRED, ReportStatus.PENDING}:
        step.transition(task.report, ReportStatus.PENDING, task.id)
    if task.report.file_path:
        task.report.versions.append(task.report.file_path)
        task.report.file_path = ""
