"""Place a run on a host, and recover it after its earlier host was lost."""

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.events import WorkflowPlaced
from kingdom.workflow.model.run.workflow import Placement, StopOutcome
from kingdom.workflow.model.status import AgentStatus, CheckpointStatus, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.operations import plan_recovery
from kingdom.workflow.model.steps.proceed import proceed
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import release_tree, request_stop
from kingdom.workflow.model.steps.work_reset import mark_agent_ended

# A run that has lost its host this many times without progress fails: its agent probably overloads the hosts.
_LOSSES_MAX = 3


def place(step: Step, placement: Placement) -> None:
    """Place the run on a host, and record that everything under the earlier placement has ended.

    On the same host the run continues in its checkouts and sessions. On another host the checkouts are created again
    and the run continues after its last checkpoint.
    """
    workflow = step.workflow
    workflow.require_allowed("place")
    before = workflow.placement
    if placement == before:
        step.ignore(f"it is already placed on {placement.host}, epoch {placement.epoch}")
        return
    if before and placement.epoch <= before.epoch:
        state = f"on {before.host}, epoch {before.epoch}"
        asked = f"cannot place it under epoch {placement.epoch}"
        raise IllegalTransition(f"workflow {workflow.id}", state, asked, (f"an epoch above {before.epoch}",))
    workflow.placement = placement
    step.emit(WorkflowPlaced(workflow_id=workflow.id, host=placement.host, epoch=placement.epoch))
    if before:
        agent_was_alive = any(work.agent.alive for work in workflow.works)
        _interrupt(step)
        if agent_was_alive and workflow.stop_request is None:
            _count_loss(step, before.host)
        if before.host != placement.host:
            _drop_host_data(step)
        else:
            _release_again(step)
        proceed(step)


def _count_loss(step: Step, host: str) -> None:
    """Count the loss of a host. Fail the run after too many losses without progress."""
    workflow = step.workflow
    workflow.losses_without_progress += 1
    if workflow.losses_without_progress >= _LOSSES_MAX:
        reason = (
            f"its host was lost {workflow.losses_without_progress} times in a row while its agent ran, most recently"
            f" {host}, and no task was completed in between: check whether the agent overloads the host, then resume it"
        )
        request_stop(step, StopOutcome.FAIL, reason)


def _interrupt(step: Step) -> None:
    """Record that the earlier host no longer works on the run."""
    workflow = step.workflow
    for work in workflow.works:
        mark_agent_ended(step, work, AgentStatus.STOPPED)
        if work.checkpointing.status is CheckpointStatus.TAKING:
            step.transition(work.checkpointing, CheckpointStatus.PENDING, work.id)
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.CREATING:
            step.transition(tree, WorkTreeStatus.PENDING, tree.id)
    if workflow.resumption:
        workflow.resumption.in_flight = False


def _release_again(step: Step) -> None:
    """Repeat the commands to release checkouts, because the host ignores commands of the earlier epoch."""
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.PENDING_RELEASE and tree.releasing:
            release_tree(step, tree)


def _drop_host_data(step: Step) -> None:
    """Record that the checkouts on the earlier host are lost, and plan a rollback if the run needs one."""
    workflow = step.workflow
    for tree in workflow.work_trees:
        if tree.status is WorkTreeStatus.READY:
            step.transition(tree, WorkTreeStatus.PENDING, tree.id)
        elif tree.status is WorkTreeStatus.PENDING_RELEASE:
            step.transition(tree, WorkTreeStatus.RELEASED, tree.id)
    workflow.host_data_lost = workflow.started_at is not None
    if workflow.status is WorkflowStatus.READY:
        step.set_status(WorkflowStatus.PREPARING)
    elif workflow.status is WorkflowStatus.RUNNING and workflow.stop_request is None:
        workflow.resumption = plan_recovery(workflow)
        step.set_status(WorkflowStatus.RESUMING)
    elif workflow.resumption and not workflow.resumption.rolls_back:
        # The session is on the earlier host, so it cannot be continued.
        workflow.resumption = plan_recovery(workflow)
