"""What a General does with what happens to its runs: soldiers come and go, petitions, questions, the end."""

from datetime import timedelta
from pathlib import Path

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.port import Transaction
from kingdom.chronicle.catalogue import chronicle
from kingdom.chronicle.events import SoldierCompleted, SoldierSpawned, SoldierTimeout, TaskNeedsHuman
from kingdom.court.asks import APPROVE, REJECT, Ask, AskStatus, ask_people, load_ask, save_ask
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.general.ending import drop_sessions, end, is_skipped, judged
from kingdom.court.general.money import book_late, tell_parked
from kingdom.court.general.side_files import keep_memory, keep_sessions
from kingdom.court.general.staff import Staff, open_assignments, root_of, run_of_root
from kingdom.court.package import Policy
from kingdom.court.petitions.decision import PetitionState
from kingdom.court.petitions.granting import grant_waiting
from kingdom.court.petitions.petition import petition
from kingdom.court.petitions.records import has_open_petitions, petitions_of
from kingdom.court.records import ASSIGNMENTS, load, save
from kingdom.court.sessions import Session, drop_session, note_session
from kingdom.court.streams import PetitionsDue, PetitionSettled, assignment_rested, retry_due
from kingdom.errors import NotFound
from kingdom.text import sentence, with_reason
from kingdom.workflow import lifecycle
from kingdom.workflow.model import answers, events
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.work import Work, soldier_of
from kingdom.workflow.model.workflow import About, Workflow
from kingdom.workflow.records import load_workflow

_QUESTION_LENGTH_MAX = 2000


async def work_started(staff: Staff, received: Event[events.WorkStarted], transaction: Transaction) -> None:
    """Note which soldier works for the assignment from now on."""
    workflow, root = await _context(transaction, received.payload.workflow_id)
    work = workflow.find_work(received.payload.work_id)
    soldier = _soldier(workflow, received.payload.work_id)
    host = workflow.placement.host if workflow.placement else ""
    session = Session(
        task_id=root.id,
        general=root.target_general,
        host=host,
        started_at=staff.clock(),
        pid=work.agent.pid if work else None,
    )
    await note_session(transaction, soldier, session)
    await grant_waiting(transaction, root.id, workflow, staff.today)
    await chronicle(transaction, SoldierSpawned(task_id=root.id, soldier_id=soldier), root.target_general)
    if staff.directory:
        keep_sessions(transaction, staff.directory, root.id, workflow)


async def work_completed(_: Staff, received: Event[events.WorkCompleted], transaction: Transaction) -> None:
    """Note how a soldier ended; one that reports that there is nothing to do ends the run."""
    workflow, root = await _context(transaction, received.payload.workflow_id)
    work = workflow.find_work(received.payload.work_id)
    status = str((work.result or {}).get("status", "success")) if work else "success"
    soldier = _soldier(workflow, received.payload.work_id)
    await drop_session(transaction, soldier)
    said = SoldierCompleted(task_id=root.id, soldier_id=soldier, status=status)
    await chronicle(transaction, said, root.target_general)
    goes_on = workflow.status in (WorkflowStatus.RUNNING, WorkflowStatus.AWAITING)
    if status == "skipped" and goes_on and work is not workflow.works[-1]:
        await lifecycle.cancel(transaction, workflow.id, actor=root.target_general, reason="there is nothing to do")


async def query_failed(_: Staff, received: Event[answers.QueryFailed], transaction: Transaction) -> None:
    """Note that a soldier took too long."""
    failed = received.payload
    if not failed.timed_out:
        return
    workflow, root = await _context(transaction, received.envelope.aggregate_id)
    seconds = _time_limit(workflow.find_work(failed.work_id), failed.task_id)
    said = SoldierTimeout(task_id=root.id, soldier_id=_soldier(workflow, failed.work_id), timeout_seconds=seconds)
    await chronicle(transaction, said, root.target_general)


async def agent_petitioned(
    staff: Staff, received: Event[answers.AgentPetitioned], transaction: Transaction
) -> Outcome | None:
    """Decide on what an agent asks for, by the policy that counts now."""
    workflow, root = await _context(transaction, received.envelope.aggregate_id)
    package = staff.packages().get(root.target_general)
    if package is None:
        return staff.without_package(received, root)
    await petition(
        transaction,
        root,
        package.general.policy,
        workflow,
        received.payload,
        at=staff.clock(),
        channel=staff.channel_of(root.target_general),
        today=staff.today,
        absent=staff.absent,
    )
    return None


async def petition_settled(
    staff: Staff, received: Event[PetitionSettled | PetitionsDue], transaction: Transaction
) -> None:
    """Go on with the petitions that waited, and end an assignment that waited for nothing else."""
    await _conclude(staff, transaction, run_of_root(received.payload.root))


async def run_awaits(staff: Staff, received: Event[events.WorkflowAwaiting], transaction: Transaction) -> None:
    """Ask a person, and give the slot back until they have answered."""
    workflow, root = await _context(transaction, received.payload.workflow_id)
    found = await open_assignments(transaction, root.id)
    if workflow.status is not WorkflowStatus.AWAITING or not found:
        return
    if workflow.parked_until:
        await tell_parked(staff, transaction, workflow, root)
        return
    record, current = found[-1]
    await drop_sessions(transaction, workflow)
    await grant_waiting(transaction, root.id, workflow, staff.today)
    ask = _ask(staff, workflow, root, current)
    waiting = msgspec.structs.replace(
        current, status=AssignmentStatus.NEEDS_HUMAN, reason=ask.question, cost_usd=workflow.cost_usd
    )
    await save(transaction, waiting, record)
    await transaction.publish(assignment_rested(current.id))
    said = TaskNeedsHuman(task_id=current.id, question=ask.question)
    await chronicle(transaction, said, root.target_general)
    await ask_people(transaction, ask, channel=staff.channel_of(root.target_general), today=staff.today)


async def run_resumed(_: Staff, received: Event[events.WorkflowResumed], transaction: Transaction) -> None:
    """Ask no more what a person has answered at the run itself, past the court."""
    root_id = root_of(received.payload.workflow_id)
    known = await load_ask(transaction, root_id)
    found = await open_assignments(transaction, root_id)
    if not known or known[1].status is not AskStatus.OPEN or not found:
        return
    await save_ask(transaction, known[1].answered("", ""), known[0])
    record, current = found[-1]
    await save(transaction, msgspec.structs.replace(current, status=AssignmentStatus.IN_PROGRESS, reason=""), record)


async def run_completed(staff: Staff, received: Event[events.WorkflowCompleted], transaction: Transaction) -> None:
    """End the assignment, once everything that was asked for on the way is done too."""
    await _conclude(staff, transaction, received.payload.workflow_id)


async def run_cancelled(staff: Staff, received: Event[events.WorkflowCancelled], transaction: Transaction) -> None:
    """End the assignment: its agent had nothing to do, a person said no, or somebody gave the run up."""
    workflow, root = await _context(transaction, received.payload.workflow_id)
    if is_skipped(workflow):
        status, reason = judged(workflow)
    else:
        status, reason = AssignmentStatus.FAILED, f"killed: {workflow.reason or 'somebody cancelled the run'}"
    await book_late(transaction, root, workflow.cost_usd)
    await end(staff, transaction, root.id, status, reason, workflow)


async def run_failed(staff: Staff, received: Event[events.WorkflowFailed], transaction: Transaction) -> Outcome | None:
    """Try again after a while as often as the policy allows, then give up."""
    workflow, root = await _context(transaction, received.payload.workflow_id)
    package = staff.packages().get(root.target_general)
    await book_late(transaction, root, workflow.cost_usd)
    if workflow.status is not WorkflowStatus.FAILED or root.status in ASSIGNMENTS.final:
        return None
    if package is None:
        return staff.without_package(received, root)
    policy = package.general.policy
    if root.retries >= policy.retries or workflow.is_over_budget:
        await end(staff, transaction, root.id, AssignmentStatus.FAILED, received.payload.reason, workflow)
        return None
    record, _ = await load(transaction, Assignment, root.id)
    again = msgspec.structs.replace(root, retries=root.retries + 1, reason=received.payload.reason)
    await save(transaction, again, record)
    at = staff.clock() + timedelta(seconds=policy.retry_after_seconds)
    await transaction.publish(retry_due(root.id, root.target_general), at=at)
    return None


async def _conclude(staff: Staff, transaction: Transaction, workflow_id: str) -> None:
    workflow, root = await _context(transaction, workflow_id)
    if root.status in ASSIGNMENTS.final:
        await book_late(transaction, root, workflow.cost_usd)
        return
    await grant_waiting(transaction, root.id, workflow, staff.today)
    if workflow.status is not WorkflowStatus.COMPLETED:
        return
    if await has_open_petitions(transaction, root.id):
        await _give_slots_back(transaction, workflow)
        return
    status, reason = judged(workflow)
    petitions = await petitions_of(transaction, root.id)
    if failed := [each for each in petitions if each.state is PetitionState.FAILED]:
        status, reason = AssignmentStatus.FAILED, "; ".join(f"{each.kind}: {each.reason}" for each in failed)
    await end(staff, transaction, root.id, status, reason, workflow)
    package = staff.packages().get(root.target_general)
    if package and status is AssignmentStatus.COMPLETED:
        keep_memory(transaction, Path(package.directory), root.repo or "", workflow)


async def _give_slots_back(transaction: Transaction, workflow: Workflow) -> None:
    """Let others work while the world outside takes its time with what was asked for."""
    cost = workflow.cost_usd
    for record, assignment in await open_assignments(transaction, root_of(workflow.id)):
        if assignment.cost_usd != cost:
            await save(transaction, msgspec.structs.replace(assignment, cost_usd=cost), record)
        await transaction.publish(assignment_rested(assignment.id))


def _ask(staff: Staff, workflow: Workflow, root: Assignment, current: Assignment) -> Ask:
    policy, now = _policy(staff, root), staff.clock()
    question = workflow.question
    for_money = question is not None and question.about is About.BUDGET
    ask = Ask(
        id=root.id,
        task_id=current.id,
        general=root.target_general,
        workflow_id=workflow.id,
        question=question.text if question else _gate_question(workflow, root),
        choices=question.choices if question else (APPROVE, REJECT),
        exact=question is None or for_money,
        people=policy.ask_people,
        asked_at=now,
        due_at=now + timedelta(hours=policy.ask_deadline_hours),
        usd=workflow.grant_usd if for_money else workflow.left_usd,
        default=policy.ask_default,
    )
    # A default that is no answer to this question would leave it open for ever.
    is_no_answer = ask.exact and ask.chosen(ask.default) is None
    return msgspec.structs.replace(ask, default="") if is_no_answer else ask


def _policy(staff: Staff, root: Assignment) -> Policy:
    """Return the policy that counts now; a General without a package asks as any other."""
    package = staff.packages().get(root.target_general)
    return package.general.policy if package else Policy()


def _gate_question(workflow: Workflow, root: Assignment) -> str:
    """Return what a person is asked at a gate: what it is about, and what the agent before it reported."""
    work = workflow.find_work(workflow.gate or "")
    done = work.definition.name if work else "a step"
    summary = str((work.result or {}).get("summary") or "") if work else ""
    about = ", ".join(str(each) for each in (root.payload.get("key"), root.repo, root.type) if each)
    said = sentence(with_reason(f"{done} is done ({about})", summary))
    return f"{said} Shall it go on?"[:_QUESTION_LENGTH_MAX]


async def _context(transaction: Transaction, workflow_id: str) -> tuple[Workflow, Assignment]:
    """Return a run and the assignment that it is for."""
    try:
        _, workflow = await load_workflow(transaction, workflow_id)
        _, root = await load(transaction, Assignment, root_of(workflow_id))
    except NotFound as error:
        raise NotFound(f"{error}; a run of the court has both as long as it is told of") from error
    return workflow, root


def _time_limit(work: Work | None, task_id: str) -> int:
    """Return how many seconds a step could take: its own limit, else that of its Work."""
    own = [task.definition.timeout_seconds for task in work.tasks if task.id == task_id] if work else []
    return next(filter(None, [*own, work.definition.timeout_seconds if work else None]), 0)


def _soldier(workflow: Workflow, work_id: str) -> str:
    work = workflow.find_work(work_id)
    return soldier_of(work.agent.session) if work and work.agent.session else ""
