"""Inspect and resume runs."""

from kingdom.errors import Misconfigured
from kingdom.views.workflows import WorkflowDetails
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, allowed_operations
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, FromCheckpoint, ResumeFrom

# The operations that people can use. Other operations are only for the engine and the court.
_COMMANDS = ("prepare", "start", "pause", "resume", "cancel", "modify", "release", "delete")


def to_details(workflow: Workflow, host: Host | None) -> WorkflowDetails:
    """Return a run with its host and the allowed commands."""
    valid = [point.id for point in workflow.valid_checkpoints()]
    return WorkflowDetails(workflow=workflow, host=host, allowed=next_commands(workflow), valid_checkpoints=valid)


def next_commands(workflow: Workflow) -> list[str]:
    """Return the commands that the state of a run allows."""
    if workflow.deleted_at:
        return []
    return [each for each in allowed_operations(workflow.status) if each in _COMMANDS]


def choose_resumption(
    workflow: Workflow, *, checkpoint_id: str | None, from_base: bool, in_session: bool, reply: str | None
) -> ResumeFrom:
    """Return from where a run resumes. Reject a reply without a question, and an open question without an option."""
    how: ResumeFrom = Auto()
    if checkpoint_id is not None:
        how = FromCheckpoint(checkpoint_id)
    elif from_base:
        how = FromBase()
    elif in_session or reply is not None or workflow.status is WorkflowStatus.PAUSED:
        how = Continue(reply or "")
    asks = workflow.question
    if isinstance(how, Continue) and how.reply and not asks:
        raise Misconfigured(f"workflow {workflow.id} has no open question: leave out --reply")
    if isinstance(how, Auto) and asks:
        raise Misconfigured(
            f"workflow {workflow.id} asks: {asks.text} Answer with --reply, or choose --continue, --from or --from-base"
        )
    return how


def describe_activity(workflow: Workflow) -> str:
    """Return in a few words what a run does or waits for, or ""."""
    if workflow.stop_request:
        return f"about to {workflow.stop_request.outcome.lower()}: {workflow.stop_request.reason}"
    if workflow.question:
        return f"asks: {workflow.question.text}"
    if workflow.reason:
        return workflow.reason
    work = workflow.current_work
    if work is None or workflow.status is not WorkflowStatus.RUNNING:
        return ""
    task = work.current_task
    return f"{work.definition.name}: {task.definition.query}" if task else work.definition.name
