"""Apply the answers of a host to a run: check each answer, record it, and proceed."""

import msgspec

from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.messages.events import (
    TaskCompleted,
    TaskFailed,
    WorkCompleted,
    WorkFailed,
    WorkRetried,
    WorkStarted,
    WorkStatusChanged,
)
from kingdom.workflow.model.run.checkpoint import Checkpoint, digest
from kingdom.workflow.model.run.work import AgentPetition, Task, Work, session_of
from kingdom.workflow.model.run.workflow import RunQuestion, StopOutcome
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    TaskStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)
from kingdom.workflow.model.steps.answer_targets import (
    CommandTarget,
    count_turn_cost,
    target_agent,
    target_checkpoint,
    target_failed_tree,
    target_petition,
    target_query,
    target_report,
    target_roll_back,
    target_tree,
    target_verification,
)
from kingdom.workflow.model.steps.proceed import proceed
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import request_stop
from kingdom.workflow.model.steps.suspension import suspend_turn
from kingdom.workflow.model.steps.work_reset import clear_failures, mark_agent_ended, reset_work

# Every step rewrites the record of the run, so the amount of agent data in it is limited.
_PETITIONS_PER_TASK_MAX = 50
_PETITION_BYTES_MAX = 64_000
_QUESTION_LENGTH_MAX = 4_000
_CHOICES_MAX = 20
_CHOICE_LENGTH_MAX = 200


def on_work_tree_created(step: Step, answer: answers.WorkTreeCreated) -> None:
    """Record a checkout as READY. After its last checkout, the run is READY or continues."""
    tree = target_tree(step, answer, WorkTreeStatus.CREATING)
    if tree:
        step.transition(tree, WorkTreeStatus.READY, tree.id)
        tree.error = ""
        proceed(step)


def on_work_tree_failed(step: Step, answer: answers.WorkTreeFailed) -> None:
    """Record every checkout of the same command as failed, and fail the run.

    If the run no longer needs the checkout that failed, request the others again instead.
    """
    failed = target_failed_tree(step, answer)
    if failed is None:
        return
    for tree in step.workflow.work_trees:
        if tree.attempt == answer.attempt and tree.status in {WorkTreeStatus.CREATING, WorkTreeStatus.READY}:
            step.transition(tree, WorkTreeStatus.FAILED if failed.is_wanted else WorkTreeStatus.PENDING, tree.id)
    if failed.is_wanted:
        failed.error = answer.error
        request_stop(step, StopOutcome.FAIL, f"no checkout of {failed.ref.git_id}: {answer.error}")
    proceed(step)


def on_work_tree_released(step: Step, answer: answers.WorkTreeReleased) -> None:
    """Record a checkout as removed."""
    tree = target_tree(step, answer, WorkTreeStatus.PENDING_RELEASE)
    if tree:
        step.transition(tree, WorkTreeStatus.RELEASED, tree.id)
        tree.error = ""


def on_work_tree_release_failed(step: Step, answer: answers.WorkTreeReleaseFailed) -> None:
    """Record why a checkout was not removed, so its release can be retried."""
    tree = target_tree(step, answer, WorkTreeStatus.PENDING_RELEASE)
    if tree and not tree.releasing:
        step.ignore(f"no release of WorkTree {tree.id} is in progress")
    elif tree:
        tree.releasing = False
        tree.error = answer.error


def on_work_space_created(step: Step, answer: answers.WorkSpaceCreated) -> None:
    """Record the folder of a Work."""
    work = target_agent(step, answer, AgentStatus.STARTING, AgentStatus.RUNNING)
    if work:
        work.work_space_id = answer.work_space_id


def on_agent_started(step: Step, answer: answers.AgentStarted) -> None:
    """Move a Work to RUNNING and send its next prompt."""
    work = target_agent(step, answer, AgentStatus.STARTING)
    if work is None:
        return
    step.transition(work.agent, AgentStatus.RUNNING, work.id)
    work.agent.session = answer.session or work.agent.session
    work.agent.pid = answer.pid
    if step.workflow.earlier_session and work.agent.uses_earlier_session is None:
        work.agent.uses_earlier_session = session_of(answer.session or "") == session_of(
            step.workflow.earlier_session.token
        )
    work.started_at = work.started_at or step.at
    step.update_work_statuses()
    step.emit(WorkStarted(work_id=work.id, workflow_id=step.workflow.id))
    proceed(step)


def on_agent_stopped(step: Step, answer: answers.AgentStopped) -> None:
    """Record that no process of a Work is running. If the end was not expected, retry or fail the Work."""
    work = target_agent(step, answer, AgentStatus.STARTING, AgentStatus.RUNNING)
    if work is None:
        return
    expected = step.workflow.stop_request is not None or work.verification.status is VerificationStatus.PASSED
    if expected:
        mark_agent_ended(step, work, AgentStatus.STOPPED)
        proceed(step)
    else:
        _fail_agent(step, work, "the agent ended without an answer")


def on_agent_error(step: Step, answer: answers.AgentError) -> None:
    """Retry or fail a Work whose agent could not start or crashed, unless the run stops or the checks have passed."""
    work = target_agent(step, answer, AgentStatus.STARTING, AgentStatus.RUNNING)
    if work is None:
        return
    work.agent.error = answer.error
    if step.workflow.stop_request:
        mark_agent_ended(step, work, AgentStatus.STOPPED)
        proceed(step)
    elif work.verification.status is VerificationStatus.PASSED:
        mark_agent_ended(step, work, AgentStatus.ERROR)
        proceed(step)
    else:
        _fail_agent(step, work, answer.error)


def on_query_responded(step: Step, answer: answers.QueryResponded) -> None:
    """Request the report, or complete the Task."""
    found = target_query(step, answer, QueryStatus.SENT, QueryStatus.UNKNOWN)
    if found:
        _record_response(step, *found, answer.response)


def on_query_failed(step: Step, answer: answers.QueryFailed) -> None:
    """Retry, fail or suspend the Task. If the agent was stopping, the result of the prompt is UNKNOWN."""
    found = target_query(step, answer, QueryStatus.SENT)
    if found is None:
        return
    work, task = found
    if work.agent.stopping:
        step.transition(task.query, QueryStatus.UNKNOWN, task.id)
    elif suspend_turn(step, task, answer):
        step.transition(task.query, QueryStatus.PENDING, task.id)
        task.query.begun = True
    else:
        step.transition(task.query, QueryStatus.FAILED, task.id)
        task.query.error = answer.error
        _retry_or_fail(step, work, answer.error, task)
    proceed(step)


def on_agent_asked(step: Step, answer: answers.AgentAsked) -> None:
    """Stop the run until a person answers. The agent then continues the prompt with the reply."""
    found = target_query(step, answer, QueryStatus.SENT)
    if found:
        _, task = found
        step.transition(task.query, QueryStatus.PENDING, task.id)
        task.query.begun = True
        task.times_parked = 0
        text = answer.question[:_QUESTION_LENGTH_MAX]
        choices = tuple(choice[:_CHOICE_LENGTH_MAX] for choice in answer.choices[:_CHOICES_MAX])
        step.workflow.question = RunQuestion(task_id=task.id, text=text, choices=choices)
        request_stop(step, StopOutcome.AWAIT, text)
        proceed(step)


def on_agent_spent(step: Step, answer: answers.AgentSpent) -> None:
    """Count the cost of an interrupted turn, or a cost that the agent had outside of its turns."""
    part: CommandTarget | None
    if answer.task_id:
        found = count_turn_cost(step, answer)
        part = (found[1].report if answer.report_id else found[1].query) if found else None
    else:
        work = step.workflow.find_work(answer.work_id)
        part = work.agent if work else None
        if work:
            work.count_cost(f"{work.id}#{answer.attempt}", answer.cost_usd)
    status = step.workflow.status
    is_open = status not in step.workflow.machine.final
    part_name = f"turn of {answer.task_id or answer.work_id}"
    step.ignore_if_stale(answer, part_name, part.attempt if part else None, status, awaited=is_open)


def on_agent_petitioned(step: Step, answer: answers.AgentPetitioned) -> None:
    """Store the petition of an agent for a decision."""
    work = target_petition(step, answer)
    if work is None or any(petition.id == answer.petition_id for petition in work.petitions):
        return
    if sum(petition.task_id == answer.task_id for petition in work.petitions) >= _PETITIONS_PER_TASK_MAX:
        step.ignore(f"{answer.task_id} has reached the limit of {_PETITIONS_PER_TASK_MAX} petitions")
    elif len(msgspec.json.encode(answer.body)) > _PETITION_BYTES_MAX:
        step.ignore(f"the body of a petition exceeds the limit of {_PETITION_BYTES_MAX} bytes")
    else:
        petition = AgentPetition(id=answer.petition_id, task_id=answer.task_id, kind=answer.kind, body=answer.body)
        work.petitions.append(petition)


def on_query_reconciled(step: Step, answer: answers.QueryReconciled) -> None:
    """Act on what the transcript shows: send the prompt again, record its answer, continue the turn, or fail."""
    found = target_query(step, answer, QueryStatus.SENT, QueryStatus.UNKNOWN)
    if found is None:
        return
    if step.workflow.status is not WorkflowStatus.RUNNING and answer.finding is not answers.TranscriptFinding.ANSWERED:
        step.ignore(f"the run is {step.workflow.status}; a resume checks the query again")
        return
    work, task = found
    task.query.reconciling = False
    if task.query.status is QueryStatus.SENT:
        step.transition(task.query, QueryStatus.UNKNOWN, task.id)
    match answer.finding:
        case answers.TranscriptFinding.ANSWERED:
            _record_response(step, work, task, answer.response)
            return
        case answers.TranscriptFinding.NO_TRANSCRIPT:
            step.transition(task.query, QueryStatus.FAILED, task.id)
            task.query.error = "its result is unknown because there is no transcript"
            work.agent.session = None
            _fail_work(step, work, task.query.error, task)
        case _:
            step.transition(task.query, QueryStatus.PENDING, task.id)
            task.query.begun = answer.finding is answers.TranscriptFinding.UNFINISHED
    proceed(step)


def on_report_generated(step: Step, answer: answers.ReportGenerated) -> None:
    """Complete the Task."""
    found = target_report(step, answer)
    if found:
        work, task = found
        step.transition(task.report, ReportStatus.COMPLETED, task.id)
        task.report.file_path = answer.file_path
        _finish_turn(step, work, task)


def on_report_failed(step: Step, answer: answers.ReportFailed) -> None:
    """Retry or fail the Task. If the agent was stopping or can continue later, make the report PENDING instead."""
    found = target_report(step, answer)
    if found is None:
        return
    work, task = found
    if work.agent.stopping or suspend_turn(step, task, answer):
        step.transition(task.report, ReportStatus.PENDING, task.id)
    else:
        step.transition(task.report, ReportStatus.FAILED, task.id)
        task.report.error = answer.error
        _retry_or_fail(step, work, answer.error, task)
    proceed(step)


def on_work_verified(step: Step, answer: answers.WorkVerified) -> None:
    """Complete the Work and request its checkpoint."""
    work = target_verification(step, answer)
    if work:
        step.transition(work.verification, VerificationStatus.PASSED, work.id)
        work.result = answer.result
        work.ended_at = step.at
        step.update_work_statuses()
        step.emit(WorkCompleted(work_id=work.id, workflow_id=step.workflow.id))
        proceed(step)


def on_verify_failed(step: Step, answer: answers.VerifyFailed) -> None:
    """Retry or fail the Work."""
    work = target_verification(step, answer)
    if work:
        step.transition(work.verification, VerificationStatus.FAILED, work.id)
        work.verification.error = answer.error
        _retry_or_fail(step, work, answer.error)
        proceed(step)


def on_checkpoint_created(step: Step, answer: answers.CheckpointCreated) -> None:
    """Store the checkpoint and continue with the next Work."""
    work = target_checkpoint(step, answer)
    if work is None:
        return
    step.transition(work.checkpointing, CheckpointStatus.TAKEN, work.id)
    work.checkpointing.checkpoint_id = answer.checkpoint_id
    mark_agent_ended(step, work, AgentStatus.STOPPED)
    workflow = step.workflow
    works = workflow.works[: workflow.works.index(work) + 1]
    workflow.checkpoints.append(
        Checkpoint(
            id=answer.checkpoint_id,
            work_id=work.id,
            commits=answer.commits,
            definitions=digest(works),
            created_at=step.at,
            changed_paths=answer.changed_paths,
        )
    )
    proceed(step)


def on_checkpoint_failed(step: Step, answer: answers.CheckpointFailed) -> None:
    """Retry the checkpoint or fail the run. The Work itself stays completed."""
    work = target_checkpoint(step, answer)
    if work:
        step.transition(work.checkpointing, CheckpointStatus.FAILED, work.id)
        work.checkpointing.error = answer.error
        _retry_or_fail(step, work, answer.error)
        proceed(step)


def on_rolled_back(step: Step, answer: answers.RolledBack) -> None:
    """Reset the Works after the checkpoint, and continue the run."""
    resumption = target_roll_back(step, answer)
    if resumption is None:
        return
    workflow = step.workflow
    target = workflow.valid_checkpoint(resumption.checkpoint_id) if resumption.checkpoint_id else None
    for work in workflow.works_after(target):
        reset_work(step, work)
    step.update_work_statuses()
    workflow.host_data_lost = False
    resumption.rolls_back = resumption.in_flight = False
    proceed(step)


def on_roll_back_failed(step: Step, answer: answers.RollBackFailed) -> None:
    """Fail the run. The rollback changed nothing."""
    resumption = target_roll_back(step, answer)
    if resumption:
        resumption.in_flight = False
        request_stop(step, StopOutcome.FAIL, f"rollback failed: {answer.error}")
        proceed(step)


def _record_response(step: Step, work: Work, task: Task, response: str) -> None:
    step.transition(task.query, QueryStatus.RESPONDED, task.id)
    task.query.response = response
    _finish_turn(step, work, task)


def _finish_turn(step: Step, work: Work, task: Task) -> None:
    """Complete the Task if it has its answer and its report, and proceed."""
    task.times_parked = 0
    if task.status is TaskStatus.COMPLETED:
        step.workflow.losses_without_progress = 0
        step.emit(TaskCompleted(work_id=work.id, task_id=task.id))
        step.emit(WorkStatusChanged(work_id=work.id, workflow_id=step.workflow.id, status=work.status))
    proceed(step)


def _fail_agent(step: Step, work: Work, reason: str) -> None:
    mark_agent_ended(step, work, AgentStatus.ERROR)
    _retry_or_fail(step, work, reason)
    proceed(step)


def _retry_or_fail(step: Step, work: Work, reason: str, task: Task | None = None) -> None:
    """Allow another attempt if the policy has retries left, otherwise fail the Work and its run."""
    work.failures += 1
    if work.failures <= step.workflow.policy.retries:
        clear_failures(step, work)
        step.emit(
            WorkRetried(work_id=work.id, workflow_id=step.workflow.id, reason=reason, failures=work.failures),
        )
    else:
        _fail_work(step, work, reason, task)


def _fail_work(step: Step, work: Work, reason: str, task: Task | None) -> None:
    if task:
        step.emit(TaskFailed(work_id=work.id, task_id=task.id, reason=reason))
    step.update_work_statuses()
    if work.status is WorkStatus.FAILED:
        step.emit(WorkFailed(work_id=work.id, workflow_id=step.workflow.id, reason=reason))
    request_stop(step, StopOutcome.FAIL, reason)
