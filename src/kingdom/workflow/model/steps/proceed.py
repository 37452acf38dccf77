"""What a run does next. Every step ends here: facts are written first, then this looks at the whole and goes on."""

from kingdom.workflow.model.messages.commands import (
    GenerateReport,
    InterruptAgent,
    PrepareResources,
    ReleaseWorkTree,
    RollBack,
    SendQuery,
    StartAgent,
    StopAgent,
    TakeCheckpoint,
    VerifyWork,
    WorkTreeRequest,
)
from kingdom.workflow.model.messages.events import (
    QuerySent,
    ReportGenerationStarted,
    TaskStarted,
    WorkCancelled,
    WorkflowAwaiting,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowPaused,
    WorkflowResumed,
    WorkflowStarted,
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
    Resumption,
    RunQuestion,
    StopOutcome,
    StopRequest,
    format_usd,
)
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)
from kingdom.workflow.model.steps.step import Step


def proceed(step: Step) -> None:
    """Send whatever the run needs next; what is already on its way is waited for."""
    workflow = step.workflow
    if not workflow.wanted or not _halt(step, workflow.wanted):
        _go_on(step)
    step.derive()


def _go_on(step: Step) -> None:
    workflow = step.workflow
    if workflow.status is WorkflowStatus.PREPARING and _trees_are_ready(step):
        step.become(WorkflowStatus.READY)
        if workflow.starts_when_ready:
            start_running(step)
    if workflow.status is WorkflowStatus.RESUMING and _trees_are_ready(step) and workflow.resumption:
        _resume(step, workflow.resumption)
    if workflow.status is WorkflowStatus.RUNNING:
        _run(step)


def start_running(step: Step) -> None:
    """Let a READY run become a running one."""
    workflow = step.workflow
    step.become(WorkflowStatus.RUNNING)
    workflow.starts_when_ready = False
    workflow.started_at = step.at
    step.say(WorkflowStarted(workflow_id=workflow.id))


def request_stop(step: Step, wish: StopOutcome, reason: str) -> None:
    """Note what the run shall become once nothing runs, unless something stronger is wanted already."""
    workflow = step.workflow
    if workflow.wanted and not wish.overrules(workflow.wanted.wish):
        return
    workflow.wanted = StopRequest(wish=wish, reason=reason)
    if not workflow.is_quiet:
        step.say(WorkflowStopRequested(workflow_id=workflow.id, wanted=wish, reason=reason))


def ask_for_budget(step: Step, task: Task) -> None:
    """Let the run wait for more money, or fail for want of it, as its policy says."""
    workflow = step.workflow
    cost, budget = format_usd(workflow.cost_usd), format_usd(workflow.budget_usd or 0)
    spent = f"{workflow.name} has cost {cost} of its budget of {budget}"
    text = f"{spent}. Shall it go on with another {format_usd(workflow.grant_usd)}?"
    workflow.question = RunQuestion(task_id=task.id, text=text, choices=(GO_ON, STOP), about=QuestionTopic.BUDGET)
    stops = workflow.policy.over_budget is OverBudget.STOP
    request_stop(step, StopOutcome.FAIL if stops else StopOutcome.AWAIT, spent if stops else text)


def release_unwanted_trees(step: Step) -> None:
    """Tell the host to remove what is no longer wanted and was kept only for a Work in progress."""
    for tree in step.workflow.work_trees:
        if tree.status is WorkTreeStatus.PENDING_RELEASE and not tree.releasing:
            release_tree(step, tree)


def release_tree(step: Step, tree: WorkTree) -> None:
    """Tell the host to remove a checkout."""
    tree.releasing = True
    step.command(ReleaseWorkTree, tree.attempt, work_tree_id=tree.id)


def _halt(step: Step, wanted: StopRequest) -> bool:
    """Work towards what is wanted; returns False where the run goes on for now."""
    workflow = step.workflow
    gentle = wanted.wish in {StopOutcome.PAUSE, StopOutcome.AWAIT}
    work = workflow.current_work
    if gentle and work and work.is_finishing and not workflow.uprooted:
        return False
    if not workflow.is_quiet:
        _stop_agents(step, wanted.wish)
        return True
    workflow.wanted = None
    if gentle and work is None:
        return False
    workflow.resumption = None
    workflow.reason = wanted.reason
    _SETTLE[wanted.wish](step, wanted.reason)
    return True


def _stop_agents(step: Step, wish: StopOutcome) -> None:
    for work in step.workflow.works:
        if work.agent.alive and wish is StopOutcome.CANCEL and work.agent.stopping is not StopKind.INTERRUPT:
            work.agent.stopping = StopKind.INTERRUPT
            step.command(InterruptAgent, work.agent.attempt, work_id=work.id)
        elif work.agent.alive and work.agent.stopping is None:
            work.agent.stopping = StopKind.STOP
            step.command(StopAgent, work.agent.attempt, work_id=work.id)


def _pause(step: Step, _: str) -> None:
    _rest(step, WorkflowStatus.PAUSED)
    step.say(WorkflowPaused(workflow_id=step.workflow.id))


def _await(step: Step, reason: str) -> None:
    _rest(step, WorkflowStatus.AWAITING)
    workflow, work = step.workflow, step.workflow.current_work
    work_id, until = work.id if work else None, workflow.parked_until
    step.say(WorkflowAwaiting(workflow_id=workflow.id, work_id=work_id, reason=reason, until=until))


def _rest(step: Step, status: WorkflowStatus) -> None:
    step.derive()
    step.become(status)
    for work in step.workflow.works:
        if work.status is WorkStatus.PAUSED:
            step.say(WorkPaused(work_id=work.id, workflow_id=step.workflow.id))


def _fail(step: Step, reason: str) -> None:
    step.derive()
    step.become(WorkflowStatus.FAILED)
    step.say(WorkflowFailed(workflow_id=step.workflow.id, reason=reason))
    release_unwanted_trees(step)


def _cancel(step: Step, _: str) -> None:
    workflow = step.workflow
    for work in workflow.works:
        if work.verification.status is not VerificationStatus.PASSED:
            _cancel_work(step, work)
    step.derive()
    step.become(WorkflowStatus.CANCELLED)
    workflow.ended_at, workflow.question, workflow.parked_until = step.at, None, None
    step.say(WorkflowCancelled(workflow_id=workflow.id))
    release_unwanted_trees(step)


def _cancel_work(step: Step, work: Work) -> None:
    step.move(work.verification, VerificationStatus.CANCELLED, work.id)
    for task in work.tasks:
        if task.query.status in {QueryStatus.PENDING, QueryStatus.UNKNOWN}:
            step.move(task.query, QueryStatus.CANCELLED, task.id)
        if task.report.status is ReportStatus.PENDING:
            step.move(task.report, ReportStatus.CANCELLED, task.id)
    work.ended_at = step.at
    step.say(WorkCancelled(work_id=work.id, workflow_id=step.workflow.id))


_SETTLE = {StopOutcome.PAUSE: _pause, StopOutcome.AWAIT: _await, StopOutcome.FAIL: _fail, StopOutcome.CANCEL: _cancel}


def _trees_are_ready(step: Step) -> bool:
    """Have missing checkouts made, all in one request; True when nothing is left to wait for."""
    workflow = step.workflow
    missing = [tree for tree in workflow.work_trees if tree.status is WorkTreeStatus.PENDING]
    if missing:
        workflow.preparations += 1
        for tree in missing:
            step.move(tree, WorkTreeStatus.CREATING, tree.id)
            tree.attempt = workflow.preparations
        trees = tuple(
            WorkTreeRequest(
                work_tree_id=tree.id, git_id=tree.ref.git_id, base_branch=tree.ref.base_branch, branch=tree.branch
            )
            for tree in missing
        )
        step.command(PrepareResources, workflow.preparations, trees=trees)
    return not any(tree.status is WorkTreeStatus.CREATING for tree in workflow.work_trees)


def _resume(step: Step, resumption: Resumption) -> None:
    workflow = step.workflow
    if resumption.in_flight:
        return
    if resumption.rolls_back:
        _roll_back(step, resumption)
        return
    workflow.resumption = None
    step.become(WorkflowStatus.RUNNING)
    work = workflow.current_work
    step.say(WorkflowResumed(workflow_id=workflow.id, from_work_id=work.id if work else None))


def _roll_back(step: Step, resumption: Resumption) -> None:
    workflow = step.workflow
    target = workflow.checkpoint(resumption.checkpoint_id) if resumption.checkpoint_id else None
    commits = dict(target.commits) if target else {}
    trees = [tree.id for tree in workflow.work_trees if tree.status is WorkTreeStatus.READY]
    later = workflow.works_after(target)
    workflow.roll_backs += 1
    resumption.in_flight = True
    step.command(
        RollBack,
        workflow.roll_backs,
        checkpoint_id=resumption.checkpoint_id,
        commits={tree: commits[tree] for tree in trees if tree in commits},
        to_base=tuple(tree for tree in trees if tree not in commits),
        work_space_ids=tuple(work.work_space_id for work in later if work.work_space_id),
    )


def _run(step: Step) -> None:
    """Start the next Work, or bring the current one a step further, or end."""
    workflow = step.workflow
    all_trees_are_ready = _trees_are_ready(step)
    work = workflow.current_work
    if work is None or not work.has_started:
        if _waits_at_gate(step, work) or not workflow.is_quiet:
            return
        if work is None:
            _complete(step)
            return
    if work.verification.status is VerificationStatus.PASSED:
        _take_checkpoint(step, work)
    elif work.agent.status is AgentStatus.RUNNING:
        _advance(step, work)
    elif not work.agent.alive and all_trees_are_ready and not _runs_short(step, work):
        _start_agent(step, work)


def _runs_short(step: Step, work: Work) -> bool:
    """Stop before a turn that could not be paid."""
    workflow, task = step.workflow, work.current_task
    short = task is not None and task.needs_turn and workflow.is_over_budget
    if task and short:
        ask_for_budget(step, task)
        proceed(step)
    return short


def _waits_at_gate(step: Step, following: Work | None) -> bool:
    """Stop for a person where the Work before asks for it."""
    workflow = step.workflow
    index = workflow.works.index(following) if following else len(workflow.works)
    gate = workflow.works[index - 1] if index else None
    if gate is None or gate.approved or not gate.definition.pause_after or not workflow.is_quiet:
        return False
    reason = f"approval after {gate.definition.name}"
    workflow.reason, workflow.gate = reason, gate.id
    step.become(WorkflowStatus.AWAITING)
    step.say(WorkflowAwaiting(workflow_id=workflow.id, work_id=gate.id, reason=reason))
    return True


def _complete(step: Step) -> None:
    workflow = step.workflow
    step.become(WorkflowStatus.COMPLETED)
    workflow.ended_at = step.at
    step.say(WorkflowCompleted(workflow_id=workflow.id))
    release_unwanted_trees(step)


def _start_agent(step: Step, work: Work) -> None:
    workflow = step.workflow
    step.move(work.agent, AgentStatus.STARTING, work.id)
    work.agent.attempt += 1
    work.agent.stopping = None
    step.command(
        StartAgent,
        work.agent.attempt,
        work_id=work.id,
        work_space_id=work.work_space_id or f"{work.id}-space{work.agent.attempt}",
        model=work.definition.model,
        session=work.agent.session,
        work_tree_ids=tuple(tree.id for tree in workflow.trees_of(work)),
        mcp_server_refs=tuple(ref.without_env() for ref in workflow.mcp_server_refs_of(work.definition)),
        reports=tuple(workflow.report_paths_before(work)),
    )


def _advance(step: Step, work: Work) -> None:
    """Send the next query, report or check of a Work whose agent runs; sent nowhere else."""
    task = work.current_task
    if task is None:
        _verify(step, work)
    elif _runs_short(step, work):
        return
    elif task.query.status is QueryStatus.PENDING:
        _send_query(step, work, task)
    elif task.query.status is QueryStatus.UNKNOWN:
        _reconcile_query(step, work, task)
    elif task.query.status is QueryStatus.RESPONDED and task.report.status is ReportStatus.PENDING:
        _generate_report(step, work, task)


def _send_query(step: Step, work: Work, task: Task) -> None:
    step.move(task.query, QueryStatus.SENT, task.id)
    task.query.attempt += 1
    _command_query(step, work, task, continues=task.query.begun, reconcile=False)
    step.say(QuerySent(work_id=work.id, task_id=task.id, attempt=task.query.attempt))
    step.say(TaskStarted(work_id=work.id, task_id=task.id))


def _reconcile_query(step: Step, work: Work, task: Task) -> None:
    if not task.query.reconciling:
        task.query.reconciling = True
        _command_query(step, work, task, continues=False, reconcile=True)


def _command_query(step: Step, work: Work, task: Task, *, continues: bool, reconcile: bool) -> None:
    step.command(
        SendQuery,
        task.query.attempt,
        work_id=work.id,
        agent_attempt=work.agent.attempt,
        task_id=task.id,
        query=task.definition.query,
        report_outline=task.definition.report_outline,
        timeout_seconds=task.definition.timeout_seconds or work.definition.timeout_seconds,
        reply=task.query.reply,
        continues=continues,
        reconcile=reconcile,
        budget_usd=step.workflow.left_usd,
    )


def _generate_report(step: Step, work: Work, task: Task) -> None:
    step.move(task.report, ReportStatus.GENERATING, task.id)
    task.report.attempt += 1
    step.command(
        GenerateReport,
        task.report.attempt,
        work_id=work.id,
        agent_attempt=work.agent.attempt,
        task_id=task.id,
        report_id=task.report.id,
        report_outline=task.definition.report_outline,
        budget_usd=step.workflow.left_usd,
    )
    step.say(ReportGenerationStarted(report_id=task.report.id, task_id=task.id))


def _verify(step: Step, work: Work) -> None:
    if work.verification.status is VerificationStatus.PENDING:
        step.move(work.verification, VerificationStatus.RUNNING, work.id)
        work.verification.attempt += 1
        step.command(
            VerifyWork,
            work.verification.attempt,
            work_id=work.id,
            agent_attempt=work.agent.attempt,
            commands=work.definition.verify,
            work_tree_ids=tuple(tree.id for tree in step.workflow.trees_of(work)),
        )


def _take_checkpoint(step: Step, work: Work) -> None:
    if work.checkpointing.status is CheckpointStatus.PENDING:
        step.move(work.checkpointing, CheckpointStatus.TAKING, work.id)
        work.checkpointing.attempt += 1
        checkpoint_id = f"{work.id}-c{work.checkpointing.attempt}"
        trees = tuple(tree.id for tree in step.workflow.work_trees if tree.status is WorkTreeStatus.READY)
        step.command(
            TakeCheckpoint,
            work.checkpointing.attempt,
            work_id=work.id,
            checkpoint_id=checkpoint_id,
            work_tree_ids=trees,
        )
