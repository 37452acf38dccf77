"""What people and the court ask of a run: each is refused where the state does not allow it."""

from datetime import datetime

import msgspec

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.events import WorkflowCreated, WorkflowDeleted, WorkTreePendingRelease
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
from kingdom.workflow.model.steps.proceed import proceed, release_unwanted_trees, request_stop, start_running
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.work_reset import clear_failures


class Auto(msgspec.Struct, frozen=True):
    """Go on after the last valid checkpoint, or from base when there is none."""


class FromCheckpoint(msgspec.Struct, frozen=True):
    """Go on after a chosen checkpoint."""

    checkpoint_id: str


class FromBase(msgspec.Struct, frozen=True):
    """Begin again with nothing but the base branches."""


class Continue(msgspec.Struct, frozen=True):
    """Go on in the same session, with nothing rolled back; `reply` is what a person answered to its question."""

    reply: str = ""


ResumeFrom = Auto | FromCheckpoint | FromBase | Continue


def create(
    template: WorkflowTemplate,
    workflow_id: str,
    at: datetime,
    *,
    name: str = "",
    asker: str = "",
    general: str = "",
) -> Step:
    """Return the first step of a new Workflow, copied from a template, under a name of its own if one is given."""
    if template.deleted:
        raise IllegalTransition(f"template {template.id}", "DELETED", "no workflow can be made from it", ())
    step = Step(Workflow.copied_from(template, workflow_id, at, name=name, asker=asker, general=general), at=at)
    step.say(WorkflowCreated(workflow_id=workflow_id))
    return step


def prepare(step: Step) -> None:
    """Have a checkout made per repository, and rest at READY."""
    _prepare(step, "prepare", starts=False)


def start(step: Step) -> None:
    """Run; what is not prepared yet is prepared first."""
    step.workflow.allow("start")
    if step.workflow.status is WorkflowStatus.CREATED:
        _prepare(step, "start", starts=True)
    else:
        start_running(step)
        proceed(step)


def pause(step: Step) -> None:
    """Let the run rest as soon as its host confirms that nothing runs; what is being verified is finished first."""
    _stop(step, "pause", StopOutcome.PAUSE, "somebody paused it")


def cancel(step: Step, reason: str = "somebody cancelled it") -> None:
    """Give the run up as soon as its host confirms that nothing runs; asking twice changes nothing."""
    _stop(step, "cancel", StopOutcome.CANCEL, reason)


def resume(step: Step, how: ResumeFrom, *, grants: bool = False) -> None:
    """Run again: after a checkpoint, from base, or in the same session; one who `grants` lets it cost as much again.

    A reply that answers the engine, and not the agent, does what it says.
    """
    workflow = step.workflow
    workflow.allow("resume")
    reply = how.reply if isinstance(how, Continue) else ""
    if workflow.question and workflow.question.is_ended_by(reply):
        cancel(step, "a person stopped it")
        return
    if _answers_for_money(workflow, reply):
        how, reply, grants = Continue(), "", True
    if not grants:
        _refuse_without_money(workflow)
    resumption = _resumption(workflow, how)
    if grants and workflow.budget_usd is not None:
        workflow.budget_usd = max(workflow.budget_usd, workflow.cost_usd) + workflow.grant_usd
    workflow.reason, workflow.parked_until = "", None
    workflow.fruitless_losses = 0
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.FAILED:
            step.move(tree, WorkTreeStatus.PENDING, tree.id)
    if workflow.started_at is None:
        step.become(WorkflowStatus.PREPARING)
        proceed(step)
        return
    _forgive_all(step, resumption)
    if reply:
        _pass_on(workflow, reply)
    workflow.resumption, workflow.gate, workflow.question = resumption, None, None
    step.become(WorkflowStatus.RESUMING)
    proceed(step)


def release(step: Step) -> None:
    """Have the checkouts of an ended run removed."""
    step.workflow.allow("release")
    _release_all(step)


def release_remaining_trees(step: Step) -> None:
    """Have the checkouts removed that are left of a run that has ended or was deleted."""
    _release_all(step)


def delete(step: Step) -> None:
    """Let a run that rests for good disappear, with its checkouts."""
    workflow = step.workflow
    workflow.allow("delete")
    _release_all(step)
    workflow.deleted_at = step.at
    step.say(WorkflowDeleted(workflow_id=workflow.id))


def _prepare(step: Step, operation: str, *, starts: bool) -> None:
    workflow = step.workflow
    workflow.allow(operation)
    if workflow.placement is None:
        raise IllegalTransition(f"workflow {workflow.id}", "without a host", f"cannot {operation} it", ("place",))
    workflow.starts_when_ready = starts
    step.become(WorkflowStatus.PREPARING)
    proceed(step)


def _stop(step: Step, operation: str, wish: StopOutcome, reason: str) -> None:
    workflow = step.workflow
    workflow.allow(operation)
    wanted = workflow.wanted
    if wanted and wanted.wish is wish:
        step.ignore(f"this is wanted already: {wanted.reason}")
        return
    if wanted and not wish.overrules(wanted.wish):
        state = f"{workflow.status} and about to {wanted.wish.lower()}"
        raise IllegalTransition(f"workflow {workflow.id}", state, f"cannot {operation} it", ("cancel",))
    request_stop(step, wish, reason)
    proceed(step)


def _resumption(workflow: Workflow, how: ResumeFrom) -> Resumption:
    match how:
        case Continue():
            _refuse_lost_session(workflow)
            return Resumption(rolls_back=False)
        case FromCheckpoint(checkpoint_id):
            return Resumption(rolls_back=True, checkpoint_id=workflow.checkpoint(checkpoint_id).id)
        case FromBase():
            return Resumption(rolls_back=True)
    return plan_recovery(workflow)


def plan_recovery(workflow: Workflow) -> Resumption:
    """Return the way back to the last valid checkpoint, or to base."""
    valid = workflow.valid_checkpoints()
    return Resumption(rolls_back=True, checkpoint_id=valid[-1].id if valid else None)


def _forgive_all(step: Step, resumption: Resumption) -> None:
    """Begin to count failures anew: a person has looked at them."""
    workflow = step.workflow
    for work in workflow.works:
        work.approved = work.approved or work.id == workflow.gate
        work.failures = 0
        if not resumption.rolls_back:
            clear_failures(step, work)


def _answers_for_money(workflow: Workflow, reply: str) -> bool:
    """Tell whether a person lets the run go on that asked for more money."""
    question = workflow.question
    return question is not None and question.about is QuestionTopic.BUDGET and reply.strip().lower() == GO_ON


def _refuse_without_money(workflow: Workflow) -> None:
    question = workflow.question
    asks = (
        workflow.status is WorkflowStatus.AWAITING and question is not None and question.about is QuestionTopic.BUDGET
    )
    if asks and workflow.is_over_budget:
        state = f"{workflow.status} and over its budget of {format_usd(workflow.budget_usd or 0)}"
        ways = (
            f"answer {GO_ON!r}, which grants another {format_usd(workflow.grant_usd)}",
            f"answer {STOP!r}",
            "cancel",
        )
        raise IllegalTransition(f"workflow {workflow.id}", state, "cannot resume it", ways)


def _pass_on(workflow: Workflow, reply: str) -> None:
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
    if workflow.started_at and (workflow.uprooted or lost):
        ways = ("resume auto", "resume from a checkpoint", "resume from base")
        raise IllegalTransition(
            f"workflow {workflow.id}", f"{workflow.status} and its session is lost", "cannot continue it", ways
        )


def _release_all(step: Step) -> None:
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.READY:
            step.move(tree, WorkTreeStatus.PENDING_RELEASE, tree.id)
            step.say(WorkTreePendingRelease(work_tree_id=tree.id, workflow_id=step.workflow.id, git_id=tree.ref.git_id))
    release_unwanted_trees(step)
