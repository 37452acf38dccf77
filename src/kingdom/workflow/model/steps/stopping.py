"""Stop a run: record the requested outcome, end the agents, and change the status when no agent is running."""

from kingdom.workflow.model.messages.commands import (
    InterruptAgent,
    ReleaseWorkTree,
    StopAgent,
)
from kingdom.workflow.model.messages.events import (
    WorkCancelled,
    WorkflowAwaiting,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowPaused,
    WorkflowStopRequested,
    WorkPaused,
)
from kingdom.workflow.model.resources.template import OverBudget
from kingdom.workflow.model.run.work import StopKind, Task, Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import (
    GO_ON,
    STOP,
    QuestionTopic,
    RunQuestion,
    StopOutcome,
    StopRequest,
    format_usd,
)
from kingdom.workflow.model.status import (
    QueryStatus,
    ReportStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)
from kingdom.workflow.model.steps.step import Step


def request_stop(step: Step, outcome: StopOutcome, reason: str) -> None:
    """Request that the run stops with an outcome, unless a stronger outcome is requested already."""
    workflow = step.workflow
    if workflow.stop_request and not outcome.overrules(workflow.stop_request.outcome):
        return
    workflow.stop_request = StopRequest(outcome=outcome, reason=reason)
    if not workflow.is_idle:
        step.emit(WorkflowStopRequested(workflow_id=workflow.id, wanted=outcome, reason=reason))


def ask_for_budget(step: Step, task: Task) -> None:
    """Request a stop because the budget is used up: ask a person for more, or fail, as the policy says."""
    workflow = step.workflow
    cost, budget = format_usd(workflow.cost_usd), format_usd(workflow.budget_usd or 0)
    spent = f"This run has cost {cost} of its budget of {budget}"
    text = f"{spent}. Should it go on with another {format_usd(workflow.grant_usd)}?"
    workflow.question = RunQuestion(task_id=task.id, text=text, choices=(GO_ON, STOP), topic=QuestionTopic.BUDGET)
    stops = workflow.policy.over_budget is OverBudget.STOP
    request_stop(step, StopOutcome.FAIL if stops else StopOutcome.AWAIT, spent if stops else text)


def release_unwanted_trees(step: Step) -> None:
    """Release every checkout that the run no longer needs."""
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.PENDING_RELEASE and not tree.releasing:
            release_tree(step, tree)


def release_tree(step: Step, tree: WorkTree) -> None:
    """Send the command to remove a checkout."""
    tree.releasing = True
    step.send(ReleaseWorkTree, tree.attempt, work_tree_id=tree.id)


def advance_stop(step: Step, request: StopRequest) -> bool:
    """Stop the agents, or enter the requested outcome if no agent is running.

    Return False if the run continues for now: before it pauses or waits, it finishes its checks and its checkpoint.
    """
    workflow = step.workflow
    is_temporary = request.outcome in {StopOutcome.PAUSE, StopOutcome.AWAIT}
    work = workflow.current_work
    if is_temporary and work and work.is_finishing and not workflow.host_data_lost:
        return False
    if not workflow.is_idle:
        _stop_agents(step, request.outcome)
        return True
    workflow.stop_request = None
    if is_temporary and work is None:
        return False
    workflow.resumption = None
    workflow.reason = request.reason
    _ENTER_OUTCOME[request.outcome](step, request.reason)
    return True


def _stop_agents(step: Step, outcome: StopOutcome) -> None:
    for work in step.workflow.works:
        if work.agent.alive and outcome is StopOutcome.CANCEL and work.agent.stopping is not StopKind.INTERRUPT:
            work.agent.stopping = StopKind.INTERRUPT
            step.send(InterruptAgent, work.agent.attempt, work_id=work.id)
        elif work.agent.alive and work.agent.stopping is None:
            work.agent.stopping = StopKind.STOP
            step.send(StopAgent, work.agent.attempt, work_id=work.id)


def _pause(step: Step, _: str) -> None:
    _enter_pause(step, WorkflowStatus.PAUSED)
    step.emit(WorkflowPaused(workflow_id=step.workflow.id))


def _await(step: Step, reason: str) -> None:
    _enter_pause(step, WorkflowStatus.AWAITING)
    workflow, work = step.workflow, step.workflow.current_work
    work_id, until = work.id if work else None, workflow.parked_until
    step.emit(WorkflowAwaiting(workflow_id=workflow.id, work_id=work_id, reason=reason, until=until))


def _enter_pause(step: Step, status: WorkflowStatus) -> None:
    step.update_work_statuses()
    step.set_status(status)
    for work in step.workflow.works:
        if work.status is WorkStatus.PAUSED:
            step.emit(WorkPaused(work_id=work.id, workflow_id=step.workflow.id))


def _fail(step: Step, reason: str) -> None:
    step.update_work_statuses()
    step.set_status(WorkflowStatus.FAILED)
    step.emit(WorkflowFailed(workflow_id=step.workflow.id, reason=reason))
    release_unwanted_trees(step)


def _cancel(step: Step, _: str) -> None:
    workflow = step.workflow
    for work in workflow.works:
        if work.verification.status is not VerificationStatus.PASSED:
            _cancel_work(step, work)
    step.update_work_statuses()
    step.set_status(WorkflowStatus.CANCELLED)
    workflow.ended_at, workflow.question, workflow.parked_until = step.at, None, None
    step.emit(WorkflowCancelled(workflow_id=workflow.id))
    release_unwanted_trees(step)


def _cancel_work(step: Step, work: Work) -> None:
    step.transition(work.verification, VerificationStatus.CANCELLED, work.id)
    for task in work.tasks:
        if task.query.status in {QueryStatus.PENDING, QueryStatus.UNKNOWN}:
            step.transition(task.query, QueryStatus.CANCELLED, task.id)
        if task.report.status is ReportStatus.PENDING:
            step.transition(task.report, ReportStatus.CANCELLED, task.id)
    work.ended_at = step.at
    step.emit(WorkCancelled(work_id=work.id, workflow_id=step.workflow.id))


_ENTER_OUTCOME = {
    StopOutcome.PAUSE: _pause,
    StopOutcome.AWAIT: _await,
    StopOutcome.FAIL: _fail,
    StopOutcome.CANCEL: _cancel,
}
