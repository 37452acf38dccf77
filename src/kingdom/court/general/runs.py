"""Reactions of a General to its runs: sessions, petitions, questions, and the end."""

from datetime import timedelta
from pathlib import Path

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.port import Transaction
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import (
    AssignmentNeedsHuman,
    SessionKilled,
    SoldierCompleted,
    SoldierSpawned,
    SoldierTimeout,
)
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.general.assignment_end import end_assignment, is_skipped, judge_result, remove_run_sessions
from kingdom.court.general.context import GeneralContext, open_assignments, root_id_of, run_id_of_root
from kingdom.court.general.costs import announce_parked, record_late_cost
from kingdom.court.general.side_files import write_memory
from kingdom.court.petitions.decision import PetitionState
from kingdom.court.petitions.granting import grant_waiting_petitions
from kingdom.court.petitions.intake import handle_petition
from kingdom.court.petitions.records import has_open_petitions, petitions_of
from kingdom.court.questions import (
    APPROVE,
    REJECT,
    HumanQuestion,
    QuestionStatus,
    ask_people,
    load_question,
    save_question,
)
from kingdom.court.records import ASSIGNMENTS, load, save
from kingdom.court.sessions import (
    TIMEOUT,
    SoldierSession,
    add_session,
    mark_timed_out,
    remove_session,
    remove_timed_out,
)
from kingdom.court.streams import PetitionsDue, PetitionSettled, retry_due, slot_release_due
from kingdom.errors import NotFound
from kingdom.text import sentence, with_reason
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.run.work import Work, soldier_of
from kingdom.workflow.model.run.workflow import QuestionTopic, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import load_workflow

_QUESTION_LENGTH_MAX = 2000


async def on_work_started(
    context: GeneralContext, received: Event[events.WorkStarted], transaction: Transaction
) -> None:
    """Record which soldier works for the assignment."""
    workflow, root = await _load_run(transaction, received.payload.workflow_id)
    work = workflow.find_work(received.payload.work_id)
    soldier = _soldier(workflow, received.payload.work_id)
    host = workflow.placement.host if workflow.placement else ""
    session = SoldierSession(
        assignment_id=root.id,
        general=root.target_general,
        host=host,
        started_at=context.clock(),
        pid=work.agent.pid if work else None,
    )
    await add_session(transaction, soldier, session)
    await grant_waiting_petitions(transaction, root.id, workflow, context.approval_terms(root.target_general))
    await log_event(transaction, SoldierSpawned(assignment_id=root.id, soldier_id=soldier), root.target_general)


async def on_work_completed(_: GeneralContext, received: Event[events.WorkCompleted], transaction: Transaction) -> None:
    """Record how a soldier ended. Cancel the run if the soldier found nothing to do."""
    workflow, root = await _load_run(transaction, received.payload.workflow_id)
    work = workflow.find_work(received.payload.work_id)
    status = str((work.result or {}).get("status", "success")) if work else "success"
    soldier = _soldier(workflow, received.payload.work_id)
    await remove_session(transaction, soldier)
    completed = SoldierCompleted(assignment_id=root.id, soldier_id=soldier, status=status)
    await log_event(transaction, completed, root.target_general)
    is_open = workflow.status in (WorkflowStatus.RUNNING, WorkflowStatus.AWAITING)
    if status == "skipped" and is_open and work is not workflow.works[-1]:
        await lifecycle.cancel(transaction, workflow.id, actor=root.target_general, reason="there is nothing to do")


async def on_query_failed(_: GeneralContext, received: Event[answers.QueryFailed], transaction: Transaction) -> None:
    """Log that a soldier exceeded its time limit."""
    failed = received.payload
    if not failed.timed_out:
        return
    workflow, root = await _load_run(transaction, received.envelope.aggregate_id)
    seconds = _time_limit(workflow.find_work(failed.work_id), failed.task_id)
    soldier = _soldier(workflow, failed.work_id)
    timeout = SoldierTimeout(assignment_id=root.id, soldier_id=soldier, timeout_seconds=seconds)
    await log_event(transaction, timeout, root.target_general)
    await mark_timed_out(transaction, soldier)


async def on_agent_petitioned(
    context: GeneralContext, received: Event[answers.AgentPetitioned], transaction: Transaction
) -> Outcome | None:
    """Decide about an agent's petition by the current policy."""
    workflow, root = await _load_run(transaction, received.envelope.aggregate_id)
    package = context.packages().get(root.target_general)
    if package is None:
        return context.defer_without_package(received, root)
    await handle_petition(
        transaction,
        root,
        package.general.policy,
        workflow,
        received.payload,
        at=context.clock(),
        channel=context.channel_of(root.target_general),
        today=context.today,
        unused_systems=context.unused_systems,
        follow=package.general.follow,
    )
    return None


async def on_petition_settled(
    context: GeneralContext, received: Event[PetitionSettled | PetitionsDue], transaction: Transaction
) -> None:
    """Continue with waiting petitions, and end the assignment if it waited only for them."""
    await _end_if_done(context, transaction, run_id_of_root(received.payload.root))


async def on_run_awaiting(
    context: GeneralContext, received: Event[events.WorkflowAwaiting], transaction: Transaction
) -> None:
    """Ask a person, and release the slots until the answer arrives."""
    workflow, root = await _load_run(transaction, received.payload.workflow_id)
    found = await open_assignments(transaction, root.id)
    if workflow.status is not WorkflowStatus.AWAITING or not found:
        return
    if workflow.parked_until:
        await announce_parked(context, transaction, workflow, root)
        return
    record, current = found[-1]
    await remove_run_sessions(transaction, workflow)
    await grant_waiting_petitions(transaction, root.id, workflow, context.approval_terms(root.target_general))
    asked = _question_of(context, workflow, root, current)
    waiting = msgspec.structs.replace(
        current, status=AssignmentStatus.NEEDS_HUMAN, reason=asked.text, cost_usd=workflow.cost_usd
    )
    await save(transaction, waiting, record)
    await transaction.publish(slot_release_due(current.id))
    needs_human = AssignmentNeedsHuman(assignment_id=current.id, question=asked.text)
    await log_event(transaction, needs_human, root.target_general)
    await ask_people(transaction, asked, channel=context.channel_of(root.target_general), today=context.today)


async def on_run_resumed(_: GeneralContext, received: Event[events.WorkflowResumed], transaction: Transaction) -> None:
    """Close the question if a person resumed the run directly."""
    root_id = root_id_of(received.payload.workflow_id)
    known = await load_question(transaction, root_id)
    found = await open_assignments(transaction, root_id)
    if not known or known[1].status is not QuestionStatus.OPEN or not found:
        return
    await save_question(transaction, known[1].with_answer("", ""), known[0])
    record, current = found[-1]
    await save(transaction, msgspec.structs.replace(current, status=AssignmentStatus.IN_PROGRESS, reason=""), record)


async def on_run_completed(
    context: GeneralContext, received: Event[events.WorkflowCompleted], transaction: Transaction
) -> None:
    """End the assignment, once its petitions have ended too."""
    await _end_if_done(context, transaction, received.payload.workflow_id)


async def on_run_cancelled(
    context: GeneralContext, received: Event[events.WorkflowCancelled], transaction: Transaction
) -> None:
    """End the assignment of a run that had nothing to do, or that a person rejected or cancelled."""
    workflow, root = await _load_run(transaction, received.payload.workflow_id)
    if is_skipped(workflow):
        status, reason = judge_result(workflow)
    else:
        status, reason = AssignmentStatus.FAILED, f"killed: {workflow.reason or 'a person cancelled the run'}"
    await record_late_cost(transaction, root, workflow.cost_usd)
    await end_assignment(context, transaction, root.id, status, reason, workflow)


async def on_run_failed(
    context: GeneralContext, received: Event[events.WorkflowFailed], transaction: Transaction
) -> Outcome | None:
    """Retry later, as often as the policy allows, then fail the assignment."""
    workflow, root = await _load_run(transaction, received.payload.workflow_id)
    package = context.packages().get(root.target_general)
    await record_late_cost(transaction, root, workflow.cost_usd)
    await _log_timed_out_sessions(transaction, workflow)
    if workflow.status is not WorkflowStatus.FAILED or root.status in ASSIGNMENTS.final:
        return None
    if package is None:
        return context.defer_without_package(received, root)
    policy = package.general.policy
    if root.retries >= policy.retries or workflow.is_over_budget:
        await end_assignment(context, transaction, root.id, AssignmentStatus.FAILED, received.payload.reason, workflow)
        return None
    record, _ = await load(transaction, Assignment, root.id)
    again = msgspec.structs.replace(root, retries=root.retries + 1, reason=received.payload.reason)
    await save(transaction, again, record)
    at = context.clock() + timedelta(seconds=policy.retry_after_seconds)
    await transaction.publish(retry_due(root.id, root.target_general), at=at)
    return None


async def _log_timed_out_sessions(transaction: Transaction, workflow: Workflow) -> None:
    """Log the sessions that the host has killed because of their time limit. A failed run has no running agents."""
    soldiers = {_soldier(workflow, work.id) for work in workflow.works}
    for soldier in await remove_timed_out(transaction, soldiers):
        await log_event(transaction, SessionKilled(soldier_id=soldier, reason=TIMEOUT), SessionKilled.actor)


async def _end_if_done(context: GeneralContext, transaction: Transaction, workflow_id: str) -> None:
    """Grant waiting petitions, and end the assignment if its run is completed and no petition is open."""
    workflow, root = await _load_run(transaction, workflow_id)
    if root.status in ASSIGNMENTS.final:
        await record_late_cost(transaction, root, workflow.cost_usd)
        return
    await grant_waiting_petitions(transaction, root.id, workflow, context.approval_terms(root.target_general))
    if workflow.status is not WorkflowStatus.COMPLETED:
        return
    if await has_open_petitions(transaction, root.id):
        await _release_slots(transaction, workflow)
        return
    status, reason = judge_result(workflow)
    petitions = await petitions_of(transaction, root.id)
    if failed := [each for each in petitions if each.state is PetitionState.FAILED]:
        status, reason = AssignmentStatus.FAILED, "; ".join(f"{each.kind}: {each.reason}" for each in failed)
    await end_assignment(context, transaction, root.id, status, reason, workflow)
    package = context.packages().get(root.target_general)
    if package and status is AssignmentStatus.COMPLETED:
        write_memory(transaction, Path(package.directory), root.repo or "", workflow)


async def _release_slots(transaction: Transaction, workflow: Workflow) -> None:
    """Release the slots of a completed run while its petitions are performed."""
    cost = workflow.cost_usd
    for record, assignment in await open_assignments(transaction, root_id_of(workflow.id)):
        if assignment.cost_usd != cost:
            await save(transaction, msgspec.structs.replace(assignment, cost_usd=cost), record)
        await transaction.publish(slot_release_due(assignment.id))


def _question_of(context: GeneralContext, workflow: Workflow, root: Assignment, current: Assignment) -> HumanQuestion:
    policy, now = context.policy_of(root.target_general), context.clock()
    question = workflow.question
    for_money = question is not None and question.topic is QuestionTopic.BUDGET
    asked = HumanQuestion(
        id=root.id,
        assignment_id=current.id,
        general=root.target_general,
        workflow_id=workflow.id,
        text=question.text if question else _gate_question(workflow, root),
        choices=question.choices if question else (APPROVE, REJECT),
        exact=question is None or for_money,
        people=policy.ask_people,
        asked_at=now,
        due_at=now + timedelta(hours=policy.ask_deadline_hours),
        usd=workflow.grant_usd if for_money else workflow.remaining_usd,
        default=policy.ask_default,
    )
    # Drop a default that is not a valid answer, because it would leave the question open forever.
    is_invalid = asked.exact and asked.matching_choice(asked.default) is None
    return msgspec.structs.replace(asked, default="") if is_invalid else asked


def _gate_question(workflow: Workflow, root: Assignment) -> str:
    """Return the question whether to continue after a Work: what it is about, and what its agent reported."""
    work = workflow.find_work(workflow.work_to_approve_id or "")
    done = work.definition.name if work else "a step"
    summary = str((work.result or {}).get("summary") or "") if work else ""
    about = ", ".join(str(each) for each in (root.payload.get("key"), root.repo, root.type) if each)
    text = sentence(with_reason(f"{done} is done ({about})", summary))
    return f"{text} Continue?"[:_QUESTION_LENGTH_MAX]


async def _load_run(transaction: Transaction, workflow_id: str) -> tuple[Workflow, Assignment]:
    """Return a run and its root assignment."""
    try:
        _, workflow = await load_workflow(transaction, workflow_id)
        _, root = await load(transaction, Assignment, root_id_of(workflow_id))
    except NotFound as error:
        raise NotFound(
            f"{error}; both the run and its assignment must exist until the last event of the run is handled"
        ) from error
    return workflow, root


def _time_limit(work: Work | None, task_id: str) -> int:
    """Return the time limit of a Task in seconds: its own, or that of its Work."""
    own = [task.definition.timeout_seconds for task in work.tasks if task.id == task_id] if work else []
    return next(filter(None, [*own, work.definition.timeout_seconds if work else None]), 0)


def _soldier(workflow: Workflow, work_id: str) -> str:
    work = workflow.find_work(work_id)
    return soldier_of(work.agent.session) if work and work.agent.session else ""
