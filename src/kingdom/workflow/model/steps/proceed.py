"""Decide what a run does next. Every step first records what happened, then calls `proceed`."""

from kingdom.workflow.model.messages.commands import (
    GenerateReport,
    PrepareResources,
    RollBack,
    SendQuery,
    StartAgent,
    TakeCheckpoint,
    VerifyWork,
    WorkTreeRequest,
)
from kingdom.workflow.model.messages.events import (
    QuerySent,
    ReportGenerationStarted,
    TaskStarted,
    WorkflowAwaiting,
    WorkflowCompleted,
    WorkflowResumed,
    WorkflowStarted,
)
from kingdom.workflow.model.run.continuation import session_for
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import (
    Resumption,
)
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkTreeStatus,
)
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import advance_stop, ask_for_budget, release_unwanted_trees


def proceed(step: Step) -> None:
    """Send the commands that the run needs next. A command that has no answer yet is not sent again."""
    workflow = step.workflow
    if not workflow.stop_request or not advance_stop(step, workflow.stop_request):
        _continue(step)
    step.update_work_statuses()


def _continue(step: Step) -> None:
    workflow = step.workflow
    if workflow.status is WorkflowStatus.PREPARING and _ensure_trees(step):
        step.set_status(WorkflowStatus.READY)
        if workflow.starts_when_ready:
            start_running(step)
    if workflow.status is WorkflowStatus.RESUMING and _ensure_trees(step) and workflow.resumption:
        _resume(step, workflow.resumption)
    if workflow.status is WorkflowStatus.RUNNING:
        _run(step)


def start_running(step: Step) -> None:
    """Move a READY run to RUNNING."""
    workflow = step.workflow
    step.set_status(WorkflowStatus.RUNNING)
    workflow.starts_when_ready = False
    workflow.started_at = step.at
    step.emit(WorkflowStarted(workflow_id=workflow.id))


def _ensure_trees(step: Step) -> bool:
    """Request the missing checkouts in one command, and return whether every checkout is ready."""
    workflow = step.workflow
    missing = [tree for tree in workflow.work_trees if tree.status is WorkTreeStatus.PENDING]
    if missing:
        workflow.preparations += 1
        for tree in missing:
            step.transition(tree, WorkTreeStatus.CREATING, tree.id)
            tree.attempt = workflow.preparations
        trees = tuple(
            WorkTreeRequest(
                work_tree_id=tree.id, git_id=tree.ref.git_id, base_branch=tree.ref.base_branch, branch=tree.branch
            )
            for tree in missing
        )
        step.send(PrepareResources, workflow.preparations, trees=trees)
    return not any(tree.status is WorkTreeStatus.CREATING for tree in workflow.work_trees)


def _resume(step: Step, resumption: Resumption) -> None:
    workflow = step.workflow
    if resumption.in_flight:
        return
    if resumption.rolls_back:
        _roll_back(step, resumption)
        return
    workflow.resumption = None
    step.set_status(WorkflowStatus.RUNNING)
    work = workflow.current_work
    step.emit(WorkflowResumed(workflow_id=workflow.id, from_work_id=work.id if work else None))


def _roll_back(step: Step, resumption: Resumption) -> None:
    workflow = step.workflow
    target = workflow.valid_checkpoint(resumption.checkpoint_id) if resumption.checkpoint_id else None
    commits = dict(target.commits) if target else {}
    trees = [tree.id for tree in workflow.work_trees if tree.status is WorkTreeStatus.READY]
    later = workflow.works_after(target)
    workflow.roll_backs += 1
    resumption.in_flight = True
    step.send(
        RollBack,
        workflow.roll_backs,
        checkpoint_id=resumption.checkpoint_id,
        commits={tree: commits[tree] for tree in trees if tree in commits},
        to_base=tuple(tree for tree in trees if tree not in commits),
        work_space_ids=tuple(work.work_space_id for work in later if work.work_space_id),
    )


def _run(step: Step) -> None:
    """Start the next Work, advance the current one, or complete the run."""
    workflow = step.workflow
    all_trees_are_ready = _ensure_trees(step)
    work = workflow.current_work
    if work is None or not work.has_started:
        if _await_approval(step, work) or not workflow.is_idle:
            return
        if work is None:
            _complete(step)
            return
    if work.verification.status is VerificationStatus.PASSED:
        _take_checkpoint(step, work)
    elif work.agent.status is AgentStatus.RUNNING:
        _advance(step, work)
    elif not work.agent.alive and all_trees_are_ready and not _stop_without_budget(step, work):
        _start_agent(step, work)


def _stop_without_budget(step: Step, work: Work) -> bool:
    """Stop the run if the budget is used up and the next Task needs a turn. Return whether it was stopped."""
    workflow, task = step.workflow, work.current_task
    is_without_budget = task is not None and task.needs_turn and workflow.is_over_budget
    if task and is_without_budget:
        ask_for_budget(step, task)
        proceed(step)
    return is_without_budget


def _await_approval(step: Step, following: Work | None) -> bool:
    """Make the run wait if a person must approve the Work before `following`. Return whether the run waits."""
    workflow = step.workflow
    index = workflow.works.index(following) if following else len(workflow.works)
    previous = workflow.works[index - 1] if index else None
    if previous is None or previous.approved or not previous.definition.pause_after or not workflow.is_idle:
        return False
    reason = f"approval after {previous.definition.name}"
    workflow.reason, workflow.work_to_approve_id = reason, previous.id
    step.set_status(WorkflowStatus.AWAITING)
    step.emit(WorkflowAwaiting(workflow_id=workflow.id, work_id=previous.id, reason=reason))
    return True


def _complete(step: Step) -> None:
    workflow = step.workflow
    step.set_status(WorkflowStatus.COMPLETED)
    workflow.ended_at = step.at
    step.emit(WorkflowCompleted(workflow_id=workflow.id))
    release_unwanted_trees(step)


def _start_agent(step: Step, work: Work) -> None:
    workflow = step.workflow
    step.transition(work.agent, AgentStatus.STARTING, work.id)
    work.agent.attempt += 1
    work.agent.stopping = None
    step.send(
        StartAgent,
        work.agent.attempt,
        work_id=work.id,
        work_space_id=work.work_space_id or f"{work.id}-space{work.agent.attempt}",
        model=work.definition.model,
        session=work.agent.session,
        work_tree_ids=tuple(tree.id for tree in workflow.trees_of(work)),
        mcp_server_refs=tuple(ref.without_env() for ref in workflow.mcp_server_refs_of(work.definition)),
        reports=tuple(workflow.report_paths_before(work)),
        earlier_session=session_for(workflow, work),
    )


def _advance(step: Step, work: Work) -> None:
    """Send the next command of a Work with a running agent: a prompt, a report, or the checks."""
    task = work.current_task
    if task is None:
        _verify(step, work)
    elif _stop_without_budget(step, work):
        return
    elif task.query.status is QueryStatus.PENDING:
        _send_query(step, work, task)
    elif task.query.status is QueryStatus.UNKNOWN:
        _reconcile_query(step, work, task)
    elif task.query.status is QueryStatus.RESPONDED and task.report.status is ReportStatus.PENDING:
        _generate_report(step, work, task)


def _send_query(step: Step, work: Work, task: Task) -> None:
    step.transition(task.query, QueryStatus.SENT, task.id)
    task.query.attempt += 1
    _send_query_command(step, work, task, continues=task.query.begun, reconcile=False)
    step.emit(QuerySent(work_id=work.id, task_id=task.id, attempt=task.query.attempt))
    step.emit(TaskStarted(work_id=work.id, task_id=task.id))


def _reconcile_query(step: Step, work: Work, task: Task) -> None:
    """Ask the host to look up the result of a prompt in the transcript."""
    if not task.query.reconciling:
        task.query.reconciling = True
        _send_query_command(step, work, task, continues=False, reconcile=True)


def _send_query_command(step: Step, work: Work, task: Task, *, continues: bool, reconcile: bool) -> None:
    step.send(
        SendQuery,
        task.query.attempt,
        work_id=work.id,
        agent_attempt=work.agent.attempt,
        task_id=task.id,
        query=(work.agent.uses_earlier_session and task.continued_query) or task.definition.query,
        report_outline=task.definition.report_outline,
        timeout_seconds=task.definition.timeout_seconds or work.definition.timeout_seconds,
        reply=task.query.reply,
        continues=continues,
        reconcile=reconcile,
        budget_usd=step.workflow.remaining_usd,
    )


def _generate_report(step: Step, work: Work, task: Task) -> None:
    step.transition(task.report, ReportStatus.GENERATING, task.id)
    task.report.attempt += 1
    step.send(
        GenerateReport,
        task.report.attempt,
        work_id=work.id,
        agent_attempt=work.agent.attempt,
        task_id=task.id,
        report_id=task.report.id,
        report_outline=task.definition.report_outline,
        budget_usd=step.workflow.remaining_usd,
    )
    step.emit(ReportGenerationStarted(report_id=task.report.id, task_id=task.id))


def _verify(step: Step, work: Work) -> None:
    if work.verification.status is VerificationStatus.PENDING:
        step.transition(work.verification, VerificationStatus.RUNNING, work.id)
        work.verification.attempt += 1
        step.send(
            VerifyWork,
            work.verification.attempt,
            work_id=work.id,
            agent_attempt=work.agent.attempt,
            commands=work.definition.verify,
            work_tree_ids=tuple(tree.id for tree in step.workflow.trees_of(work)),
        )


def _take_checkpoint(step: Step, work: Work) -> None:
    if work.checkpointing.status is CheckpointStatus.PENDING:
        step.transition(work.checkpointing, CheckpointStatus.TAKING, work.id)
        work.checkpointing.attempt += 1
        checkpoint_id = f"{work.id}-c{work.checkpointing.attempt}"
        trees = tuple(tree.id for tree in step.workflow.work_trees if tree.status is WorkTreeStatus.READY)
        step.send(
            TakeCheckpoint,
            work.checkpointing.attempt,
            work_id=work.id,
            checkpoint_id=checkpoint_id,
            work_tree_ids=trees,
        )
