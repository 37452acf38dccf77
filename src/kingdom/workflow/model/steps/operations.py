"""The operations on a run that people and the court request. Each operation checks that the status allows it."""

from datetime import datetime

import msgspec

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.events import WorkflowCreated, WorkflowDeleted, WorkTreePendingRelease
from kingdom.workflow.model.references import SessionRef
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import (
    GO_ON,
    STOP,
    QuestionTopic,
    Resumption,
    StopOutcome,
    Workflow,
    format_usd,
)
from kingdom.workflow.model.status import QueryStatus, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.proceed import proceed, start_running
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import release_unwanted_trees, request_stop
from kingdom.workflow.model.steps.work_reset import clear_failures


class Auto(msgspec.Struct, frozen=True):
    """Continue after the last valid checkpoint, or from the base branches if there is no checkpoint."""


class FromCheckpoint(msgspec.Struct, frozen=True):
    """Continue after a chosen checkpoint."""

    checkpoint_id: str


class FromBase(msgspec.Struct, frozen=True):
    """Start again from the base branches."""


class Continue(msgspec.Struct, frozen=True):
    """Continue in the same session without a rollback. `reply` is a person's answer to the question of the run."""

    reply: str = ""


ResumeFrom = Auto | FromCheckpoint | FromBase | Continue


def create(
    template: WorkflowTemplate,
    workflow_id: str,
    at: datetime,
    *,
    name: str = "",
    requester: str = "",
    general: str = "",
) -> Step:
    """Return the first step of a new Workflow from a template; `name` replaces the name of the template."""
    if template.deleted:
        raise IllegalTransition(f"template {template.id}", "DELETED", "no workflow can be created from it", ())
    step = Step(Workflow.copied_from(template, workflow_id, at, name=name, requester=requester, general=general), at=at)
    step.emit(WorkflowCreated(workflow_id=workflow_id))
    return step


def continue_session(step: Step, session: SessionRef, query: str) -> None:
    """Let the first Work of a new run go on in an earlier session, with `query` as its first prompt there."""
    step.workflow.earlier_session = session
    step.workflow.works[0].tasks[0].continued_query = query


def hand_over_session(step: Step, workflow_id: str) -> None:
    """Record which run goes on with the session of an ended run."""
    step.workflow.continued_by = workflow_id


def keep_files(step: Step, until: datetime) -> None:
    """Keep the files of the run until a time, even if it ends earlier."""
    step.workflow.kept_until = until


def prepare(step: Step) -> None:
    """Prepare one checkout per repository and leave the run READY."""
    _prepare(step, "prepare", starts=False)


def start(step: Step) -> None:
    """Start the run, preparing its checkouts first if needed."""
    step.workflow.require_allowed("start")
    if step.workflow.status is WorkflowStatus.CREATED:
        _prepare(step, "start", starts=True)
    else:
        start_running(step)
        proceed(step)


def pause(step: Step) -> None:
    """Pause the run as soon as its host confirms that its agent has ended. Checks and checkpoints finish first."""
    _stop(step, "pause", StopOutcome.PAUSE, "a person paused it")


def cancel(step: Step, reason: str = "a person cancelled it") -> None:
    """Cancel the run as soon as its host confirms that its agent has ended. A second request changes nothing."""
    _stop(step, "cancel", StopOutcome.CANCEL, reason)


def resume(step: Step, how: ResumeFrom, *, grants: bool = False) -> None:
    """Resume the run from a checkpoint, from its base, or in its session. `grants` adds the initial budget once more.

    If the engine asked the question, "stop" cancels the run, and "go on" to a question about the budget adds budget.
    Every other reply goes to the agent.
    """
    workflow = step.workflow
    workflow.require_allowed("resume")
    reply = how.reply if isinstance(how, Continue) else ""
    if workflow.question and workflow.question.is_ended_by(reply):
        cancel(step, "a person stopped it")
        return
    if _grants_budget(workflow, reply):
        how, reply, grants = Continue(), "", True
    if not grants:
        _refuse_without_budget(workflow)
    resumption = _resumption(workflow, how)
    if grants and workflow.budget_usd is not None:
        workflow.budget_usd = max(workflow.budget_usd, workflow.cost_usd) + workflow.grant_usd
    workflow.reason, workflow.parked_until = "", None
    workflow.losses_without_progress = 0
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.FAILED:
            step.transition(tree, WorkTreeStatus.PENDING, tree.id)
    if workflow.started_at is None:
        step.set_status(WorkflowStatus.PREPARING)
        proceed(step)
        return
    _clear_all_failures(step, resumption)
    if reply:
        _forward_reply(workflow, reply)
    workflow.resumption, workflow.work_to_approve_id, workflow.question = resumption, None, None
    step.set_status(WorkflowStatus.RESUMING)
    proceed(step)


def release(step: Step) -> None:
    """Release the checkouts of an ended run."""
    step.workflow.require_allowed("release")
    release_remaining_trees(step)


def release_remaining_trees(step: Step) -> None:
    """Release the remaining checkouts of an ended or deleted run."""
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.READY:
            step.transition(tree, WorkTreeStatus.PENDING_RELEASE, tree.id)
            step.emit(
                WorkTreePendingRelease(work_tree_id=tree.id, workflow_id=step.workflow.id, git_id=tree.ref.git_id)
            )
    release_unwanted_trees(step)


def delete(step: Step) -> None:
    """Delete a finished run and release its checkouts."""
    workflow = step.workflow
    workflow.require_allowed("delete")
    release_remaining_trees(step)
    workflow.deleted_at = step.at
    step.emit(WorkflowDeleted(workflow_id=workflow.id))


def _prepare(step: Step, operation: str, *, starts: bool) -> None:
    workflow = step.workflow
    workflow.require_allowed(operation)
    if workflow.placement is None:
        raise IllegalTransition(f"workflow {workflow.id}", "without a host", f"cannot {operation} it", ("place",))
    workflow.starts_when_ready = starts
    step.set_status(WorkflowStatus.PREPARING)
    proceed(step)


def _stop(step: Step, operation: str, outcome: StopOutcome, reason: str) -> None:
    workflow = step.workflow
    workflow.require_allowed(operation)
    earlier = workflow.stop_request
    if earlier and earlier.outcome is outcome:
        step.ignore(f"this was already requested: {earlier.reason}")
        return
    if earlier and not outcome.overrules(earlier.outcome):
        state = f"{workflow.status} and about to {earlier.outcome.verb}"
        raise IllegalTransition(f"workflow {workflow.id}", state, f"cannot {operation} it", ("cancel",))
    request_stop(step, outcome, reason)
    proceed(step)


def _resumption(workflow: Workflow, how: ResumeFrom) -> Resumption:
    match how:
        case Continue():
            _refuse_lost_session(workflow)
            return Resumption(rolls_back=False)
        case FromCheckpoint(checkpoint_id):
            return Resumption(rolls_back=True, checkpoint_id=workflow.valid_checkpoint(checkpoint_id).id)
        case FromBase():
            return Resumption(rolls_back=True)
    return plan_recovery(workflow)


def plan_recovery(workflow: Workflow) -> Resumption:
    """Return a resumption that rolls back to the last valid checkpoint, or to the base if there is none."""
    valid = workflow.valid_checkpoints()
    return Resumption(rolls_back=True, checkpoint_id=valid[-1].id if valid else None)


def _clear_all_failures(step: Step, resumption: Resumption) -> None:
    """Reset the failure counts. If the run does not roll back, allow another attempt of the failed parts."""
    workflow = step.workflow
    for work in workflow.works:
        work.approved = work.approved or work.id == workflow.work_to_approve_id
        work.failures = 0
        if not resumption.rolls_back:
            clear_failures(step, work)


def _grants_budget(workflow: Workflow, reply: str) -> bool:
    """Return whether a reply grants the budget that the run asked for."""
    question = workflow.question
    return question is not None and question.topic is QuestionTopic.BUDGET and reply.strip().lower() == GO_ON


def _refuse_without_budget(workflow: Workflow) -> None:
    question = workflow.question
    asks = (
        workflow.status is WorkflowStatus.AWAITING and question is not None and question.topic is QuestionTopic.BUDGET
    )
    if asks and workflow.is_over_budget:
        state = f"{workflow.status} and over its budget of {format_usd(workflow.budget_usd or 0)}"
        ways = (
            f"answer {GO_ON!r}, which grants another {format_usd(workflow.grant_usd)}",
            f"answer {STOP!r}",
            "cancel",
        )
        raise IllegalTransition(f"workflow {workflow.id}", state, "cannot resume it", ways)


def _forward_reply(workflow: Workflow, reply: str) -> None:
    work = workflow.current_work
    task = work.current_task if work else None
    if task:
        task.query.reply = reply


def _refuse_lost_session(workflow: Workflow) -> None:
    work = workflow.current_work
    asked = work is not None and any(
        task.query.begun or task.query.status is not QueryStatus.PENDING for task in work.tasks
    )
    lost = work is not None and asked and work.agent.session is None
    if workflow.started_at and (workflow.host_data_lost or lost):
        ways = ("resume auto", "resume from a checkpoint", "resume from base")
        raise IllegalTransition(
            f"workflow {workflow.id}", f"{workflow.status} and its session is lost", "cannot continue it", ways
        )
