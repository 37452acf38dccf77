"""Release an assignment that has ended or waits for a person: free its slots, record its cost, update its event."""

from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_documents
from kingdom.court.documents import Assignment, AssignmentStatus, ExternalEvent, MessageType
from kingdom.court.king.assignments import load_current_quota, quota_scopes
from kingdom.court.king.context import KingContext
from kingdom.court.king.costs import DAILY_COSTS, Sums, book_release, split_by_model
from kingdom.court.king.outcomes import update_event_status
from kingdom.court.king.rounds import end_round
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS, save_quota
from kingdom.court.records import ASSIGNMENTS, ENDED, EVENTS, RESULTS, queue_message
from kingdom.workflow.model.run.workflow import RUN_PREFIX, Workflow
from kingdom.workflow.records import WORKFLOWS

_OPEN = "open"
# The part of an assignment's cost that is already recorded, so that no cost is counted twice.
BILLS = RecordKind(
    name="bill",
    directories={_OPEN: "state/king/bills", ENDED: "state/king/bills-ended"},
    final=frozenset({ENDED}),
    retention=timedelta(days=7),
)
_INACTIVE = frozenset({AssignmentStatus.NEEDS_HUMAN, *ASSIGNMENTS.final})


async def release_assignment(transaction: Transaction, assignment_id: str, now: datetime, context: KingContext) -> None:
    """Free the quotas of an assignment, record its cost, and update its event if the assignment has ended."""
    record = await transaction.get(ASSIGNMENTS.name, assignment_id)
    if record is None:
        return
    assignment = msgspec.convert(record.doc, Assignment)
    ended = assignment.status in ASSIGNMENTS.final
    held, root_id = quota_scopes(assignment), assignment.root_id
    about_end = [(EVENTS.name, assignment.cause_id), (RESULTS.name, root_id)] if ended else []
    about_cost = [
        (BILLS.name, root_id),
        (WORKFLOWS.name, f"{RUN_PREFIX}{root_id}"),
        (DAILY_COSTS.name, str(context.day(now))),
    ]
    await transaction.read_ahead([*about_cost, *((QUOTAS.name, scope) for scope in held), *about_end])
    models, has_just_ended = await _update_bill(transaction, assignment, ended=ended)
    cost = sum(models.values(), Decimal(0))
    if cost or has_just_ended:
        await book_release(transaction, context.day(now), assignment, models, has_just_ended=has_just_ended)
    for scope in held:
        quota_record, quota = await load_current_quota(transaction, scope, now, context)
        freed = quota.free(assignment_id).book(cost if scope == MONEY else Decimal(0))
        if freed != quota:
            await save_quota(transaction, freed, quota_record)
    if ended:
        await _end_event(transaction, assignment)
    await end_round(transaction, assignment, float(cost), now, context, has_just_ended=has_just_ended)
    if has_just_ended:
        await _announce_end(transaction, assignment, now, context)


async def release_inactive(transaction: Transaction, now: datetime, context: KingContext) -> int:
    """Release assignments that still hold slots after they ended or asked a person. Return their number."""
    _, soldiers = await load_current_quota(transaction, SOLDIERS, now, context)
    released = 0
    for holder in soldiers.holders:
        record = await transaction.get(ASSIGNMENTS.name, holder)
        if record and record.state in _INACTIVE:
            await release_assignment(transaction, holder, now, context)
            released += 1
    return released


async def _update_bill(transaction: Transaction, assignment: Assignment, *, ended: bool) -> tuple[Sums, bool]:
    """Record an assignment's cost. Return the cost since the last call by model, and whether it has just ended."""
    root_id = assignment.root_id
    bill = await transaction.get(BILLS.name, root_id)
    booked = Decimal(bill.doc["usd"]) if bill else Decimal(0)
    cost = max(Decimal(str(round(assignment.cost_usd, 6))), booked)
    has_just_ended = ended and (bill is None or bill.state == _OPEN)
    models = {name: Decimal(usd) for name, usd in bill.doc.get("models", {}).items()} if bill else {}
    added = split_by_model(await _find_run(transaction, root_id), models, cost - booked)
    if cost != booked or has_just_ended:
        await transaction.put(
            Record(
                kind=BILLS.name,
                id=root_id,
                version=bill.version if bill else 0,
                state=ENDED if ended else _OPEN,
                doc={"task_id": root_id, "usd": str(cost), "models": _sum(models, added)},
            )
        )
    return added, has_just_ended


async def _find_run(transaction: Transaction, root_id: str) -> Workflow | None:
    record = await transaction.get(WORKFLOWS.name, f"{RUN_PREFIX}{root_id}")
    return next(read_documents([record] if record else [], Workflow), None)


def _sum(booked: Sums, added: Sums) -> dict[str, str]:
    return {name: str(booked.get(name, 0) + added.get(name, 0)) for name in {**booked, **added}}


async def _end_event(transaction: Transaction, assignment: Assignment) -> None:
    record = await transaction.get(EVENTS.name, assignment.cause_id)
    if record and record.state not in EVENTS.final:
        await update_event_status(transaction, record, msgspec.convert(record.doc, ExternalEvent), assignment)


async def _announce_end(transaction: Transaction, assignment: Assignment, now: datetime, context: KingContext) -> None:
    result = await transaction.get(RESULTS.name, assignment.root_id)
    summary = str(result.doc.get("summary") or "") if result else ""
    explanation = summary or assignment.reason
    await queue_message(
        transaction,
        MessageType.THREAD_UPDATE,
        f"{assignment.root_id} is {assignment.status}" + (f": {explanation}" if explanation else "."),
        channel=context.channel(assignment.target_general),
        thread=assignment.root_id,
        today=context.day(now),
        context={
            "task_id": assignment.root_id,
            "event_id": assignment.cause_id,
            "general": assignment.target_general,
            "status": assignment.status,
        },
    )
