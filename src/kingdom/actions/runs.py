"""Inspect and resume runs."""

import copy
from collections.abc import Callable, Mapping

import msgspec

from kingdom.errors import Misconfigured
from kingdom.text import sentence, with_reason
from kingdom.views.workflows import WorkflowDetails
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, allowed_operations
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, FromCheckpoint, ResumeFrom

# The operations that people can use. Other operations are only for the engine and the court.
_COMMANDS = ("prepare", "start", "pause", "resume", "cancel", "modify", "release", "delete")


def to_details(workflow: Workflow, host: Host | None) -> WorkflowDetails:
    """Return a run with its host and the allowed commands."""
    valid = [point.id for point in workflow.valid_checkpoints()]
    return WorkflowDetails(workflow=workflow, host=host, allowed=next_commands(workflow), valid_checkpoints=valid)


def without_env(workflow: Workflow) -> Workflow:
    """Return a run as others than its operator may see it: the environments of MCP servers may contain secrets."""
    shown = copy.copy(workflow)
    shown.mcp_server_refs = tuple(ref.without_env() for ref in workflow.mcp_server_refs)
    shown.works = [_work_without_env(work) for work in workflow.works]
    return shown


def _work_without_env(work: Work) -> Work:
    refs = tuple(ref.without_env() for ref in work.definition.mcp_server_refs)
    shown = copy.copy(work)
    shown.definition = msgspec.structs.replace(work.definition, mcp_server_refs=refs)
    return shown


def next_commands(workflow: Workflow) -> list[str]:
    """Return the commands that the state of a run allows."""
    if workflow.deleted_at:
        return []
    return [each for each in allowed_operations(workflow.status) if each in _COMMANDS]


def choose_resumption(
    workflow: Workflow, *, checkpoint_id: str | None, from_base: bool, in_session: bool, reply: str | None
) -> ResumeFrom:
    """Return the point from which a run resumes.

    Raise Misconfigured if there is a reply but no open question. Raise it also if a question is open and no option is
    given, unless the run is paused.
    """
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
        return f"about to {workflow.stop_request.outcome.verb}: {workflow.stop_request.reason}"
    if workflow.question:
        return f"asks: {workflow.question.text}"
    if workflow.reason:
        return workflow.reason
    work = workflow.current_work
    if work is None or workflow.status is not WorkflowStatus.RUNNING:
        return ""
    task = work.current_task
    return f"{work.definition.name}: {task.definition.query}" if task else work.definition.name


def explain_state(workflow: Workflow) -> str:
    """Return in one sentence why a run is where it is: what it does, waits for, or ended with."""
    if workflow.stop_request:
        request = workflow.stop_request
        return f"It will {request.outcome.verb} ({request.reason}) as soon as its host confirms that nothing runs."
    if workflow.question:
        return f"It asks: {sentence(workflow.question.text)}"
    if workflow.parked_until:
        return with_reason(f"It continues by itself at {workflow.parked_until:%H:%M} UTC", sentence(workflow.reason))
    if workflow.work_to_approve_id and (gate := workflow.find_work(workflow.work_to_approve_id)):
        how = "answer in the inbox" if workflow.general else "resume the run to approve it"
        return f"A person must approve the work {gate.definition.name} before it begins: {how}."
    return _PLAIN_STATES.get(workflow.status, _describe_progress)(workflow)


def _describe_progress(workflow: Workflow) -> str:
    if workflow.placement is None and workflow.ended_at is None:
        return "It waits for a host with a free slot: `kingdom host list` shows all hosts."
    activity = describe_activity(workflow)
    return sentence(f"It works on {activity}") if activity else "It is about to begin its next work."


def _summary(workflow: Workflow) -> str:
    """Return the summary in the last result of an agent, or ""."""
    results = [work.result for work in workflow.works if work.result]
    return str(results[-1].get("summary") or "") if results else ""


_PLAIN_STATES: Mapping[WorkflowStatus, Callable[[Workflow], str]] = {
    WorkflowStatus.CREATED: lambda _: "It has not been started: `kingdom workflow start` starts it.",
    WorkflowStatus.READY: lambda _: "Its checkouts are ready: start or cancel it.",
    WorkflowStatus.PAUSED: lambda run: sentence(with_reason("It is paused until a person resumes it", run.reason)),
    WorkflowStatus.FAILED: lambda run: sentence(with_reason("It failed", run.reason)),
    WorkflowStatus.CANCELLED: lambda run: sentence(with_reason("It was cancelled", run.reason)),
    WorkflowStatus.COMPLETED: lambda run: sentence(with_reason("It is done", run.reason or _summary(run))),
}
