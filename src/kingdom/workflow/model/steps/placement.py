"""Where a run lives: a placement on a host under an epoch, and what is left of a run when its host is lost."""

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.events import WorkflowPlaced
from kingdom.workflow.model.run.workflow import Placement, StopOutcome
from kingdom.workflow.model.status import AgentStatus, CheckpointStatus, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.operations import plan_recovery
from kingdom.workflow.model.steps.proceed import proceed, release_tree, request_stop
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.work_reset import mark_agent_ended

_FRUITLESS_LOSSES_MAX = 3


def place(step: Step, placement: Placement) -> None:
    """Give the run to a host; whatever ran under the earlier placement is over.

    On the same host its trees and sessions are still there and the run goes on in them. On another one the trees are
    made anew and the run goes on after its last checkpoint.
    """
    workflow = step.workflow
    workflow.allow("place")
    before = workflow.placement
    if placement == before:
        step.ignore(f"it is placed on {placement.host}, epoch {placement.epoch} already")
        return
    if before and placement.epoch <= before.epoch:
        state = f"on {before.host}, epoch {before.epoch}"
        asked = f"cannot place it under epoch {placement.epoch}"
        raise IllegalTransition(f"workflow {workflow.id}", state, asked, (f"an epoch above {before.epoch}",))
    workflow.placement = placement
    step.say(WorkflowPlaced(workflow_id=workflow.id, host=placement.host, epoch=placement.epoch))
    if before:
        was_at_work = any(work.agent.alive for work in workflow.works)
        _interrupt(step)
        if was_at_work and workflow.wanted is None:
            _count_loss(step, before.host)
        if before.host != placement.host:
            _uproot(step)
        else:
            _release_again(step)
        proceed(step)


def _count_loss(step: Step, host: str) -> None:
    """Give a run up that brings down one host after the other."""
    workflow = step.workflow
    workflow.fruitless_losses += 1
    if workflow.fruitless_losses >= _FRUITLESS_LOSSES_MAX:
        reason = (
            f"{workflow.fruitless_losses} times in a row its host went down while its agent ran, last {host}, and no"
            " task was completed in between: see whether the agent brings the host down, then resume it"
        )
        request_stop(step, StopOutcome.FAIL, reason)


def _interrupt(step: Step) -> None:
    """Note that nothing runs under the earlier placement any more."""
    workflow = step.workflow
    for work in workflow.works:
        mark_agent_ended(step, work, AgentStatus.STOPPED)
        if work.checkpointing.status is CheckpointStatus.TAKING:
            step.move(work.checkpointing, CheckpointStatus.PENDING, work.id)
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.CREATING:
            step.move(tree, WorkTreeStatus.PENDING, tree.id)
    if workflow.resumption:
        workflow.resumption.in_flight = False


def _release_again(step: Step) -> None:
    """Repeat what the host was told under its earlier epoch."""
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.PENDING_RELEASE and tree.releasing:
            release_tree(step, tree)


def _uproot(step: Step) -> None:
    """Give up what stayed on another host; sessions go with the Works that a rollback resets."""
    workflow = step.workflow
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.READY:
            step.move(tree, WorkTreeStatus.PENDING, tree.id)
        elif tree.status is WorkTreeStatus.PENDING_RELEASE:
            step.move(tree, WorkTreeStatus.RELEASED, tree.id)
    workflow.uprooted = workflow.started_at is not None
    if workflow.status is WorkflowStatus.READY:
        step.become(WorkflowStatus.PREPARING)
    elif workflow.status is WorkflowStatus.RUNNING and workflow.wanted is None:
        workflow.resumption = plan_recovery(workflow)
        step.become(WorkflowStatus.RESUMING)
    elif workflow.resumption and not workflow.resumption.rolls_back:
        # A session that stayed behind cannot be continued.
        workflow.resumption = plan_recovery(workflow)
