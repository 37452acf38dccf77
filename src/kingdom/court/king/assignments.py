"""Create assignments: take slots and budget, store the assignment and notify its General in one transaction."""

from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec
import structlog

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.bus.sequence import next_id
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import AssignmentCreated, AssignmentResumed, EventDispatched
from kingdom.court.documents import RESUME, Assignment, AssignmentStatus, ExternalEvent, MessageType, Route
from kingdom.court.king.context import KING, KingContext
from kingdom.court.king.outcomes import ANSWERED, IGNORED, complete_event, update_event_status
from kingdom.court.king.waiting_queue import WaitingEntry, end_entry, read_entry
from kingdom.court.package import GeneralPolicy
from kingdom.court.quota import MONEY, ONE, SOLDIERS, Quota, general_scope, load_quota, repo_scope, save_quota
from kingdom.court.records import ASSIGNMENTS, EVENTS, queue_message, save
from kingdom.court.streams import assignment_given

# The event source of schedules.
SCHEDULE = "schedule"
_UNLIMITED_SLOTS = 1_000_000
_log = structlog.get_logger("kingdom.court")


class QuotaNeed(NamedTuple):
    """How much an assignment takes from the quota of a scope."""

    scope: str
    amount: Decimal = ONE


def quota_needs(general: str, repo: str | None, context: KingContext, usd: float | None = None) -> list[QuotaNeed]:
    """Return what an assignment needs: first the shared slot, last the budget. `usd` replaces the General's budget."""
    package = context.package(general)
    policy = package.general.policy if package else GeneralPolicy()
    settings = context.settings
    budgets = (usd, policy.budget_usd, settings.reserved_usd)
    reserved = next(each for each in budgets if each is not None)
    own = [QuotaNeed(general_scope(general))] if policy.concurrency else []
    of_repo = [QuotaNeed(repo_scope(repo))] if repo else []
    return [QuotaNeed(SOLDIERS), *own, *of_repo, QuotaNeed(MONEY, Decimal(str(min(reserved, settings.daily_usd))))]


def quota_scopes(assignment: Assignment) -> list[str]:
    """Return the scopes of all quotas that an assignment may hold."""
    # Earlier versions did not lower-case the name of a repository.
    unchanged = [f"{repo_scope('')}{assignment.repo}"] if assignment.repo else []
    of_repo = dict.fromkeys([repo_scope(assignment.repo), *unchanged]) if assignment.repo else ()
    return [SOLDIERS, general_scope(assignment.target_general), *of_repo, MONEY]


async def load_current_quota(
    transaction: Transaction, scope: str, now: datetime, context: KingContext
) -> tuple[Record, Quota]:
    """Return a quota with its current limit, and its record."""
    record, quota = await load_quota(transaction, scope, _limit(scope, context))
    return record, with_current_limit(quota, now, context)


def with_current_limit(quota: Quota, now: datetime, context: KingContext) -> Quota:
    """Return a quota with its current limit. Money is counted per day."""
    counted = msgspec.structs.replace(quota, limit=_limit(quota.scope, context))
    return counted.with_period(str(context.day(now))) if quota.scope == MONEY else counted


async def create_assignment(
    transaction: Transaction, record: Record, now: datetime, context: KingContext
) -> Assignment | None:
    """Create the assignment of a waiting entry, and end the entry. An answer resumes the assignment that asked.

    Return None if there is nothing to create: the event is gone or invalid, or the assignment that asked is gone or has
    ended.
    """
    entry = read_entry(record)
    await end_entry(transaction, record)
    event_record = await transaction.get(EVENTS.name, entry.event_id)
    event = _read_event(event_record)
    if event_record is None or event is None:
        return None
    if entry.answers:
        return await _resume(transaction, event_record, event, entry, now, context)
    assignment = await hand_out(
        transaction,
        Assignment(
            id=await next_id(transaction, "task", context.day(now)),
            event_id=schedule_id(event) or event.id,
            cause=event.id if schedule_id(event) else "",
            target_general=entry.general,
            type=event.type,
            payload=event.payload,
            priority=entry.priority,
            created_at=now,
            status=AssignmentStatus.PENDING,
            repo=entry.repo,
            subject=entry.key,
        ),
        now,
        context,
    )
    await update_event_status(transaction, event_record, with_assignment(event, record.id, assignment.id))
    dispatched = EventDispatched(event_id=event.id, assignment_id=assignment.id, target_general=entry.general)
    await log_event(transaction, dispatched, KING)
    await start_chat_thread(transaction, assignment, event, now, context)
    return assignment


def schedule_id(event: ExternalEvent) -> str:
    """Return the id of the schedule that fired an event, or "". An assignment shows it instead of the event's id."""
    if event.source != SCHEDULE:
        return ""
    return event.id.removeprefix("evt-").rpartition("-")[0]


async def _resume(
    transaction: Transaction,
    record: Record,
    event: ExternalEvent,
    entry: WaitingEntry,
    now: datetime,
    context: KingContext,
) -> Assignment | None:
    """Resume an assignment with a person's answer, even without a free slot."""
    found = await transaction.get(ASSIGNMENTS.name, entry.answers)
    if found is None:
        await complete_event(transaction, record, event, IGNORED, f"the assignment {entry.answers} no longer exists")
        return None
    root = msgspec.convert(found.doc, Assignment)
    if root.status in ASSIGNMENTS.final:
        await complete_event(transaction, record, event, IGNORED, f"{root.id} has already ended: {root.reason}")
        return None
    assignment = await hand_out(
        transaction,
        msgspec.structs.replace(
            root,
            id=await next_id(transaction, "task", context.day(now)),
            root=root.id,
            type=RESUME,
            payload=dict(event.payload),
            priority=entry.priority,
            created_at=now,
            status=AssignmentStatus.PENDING,
            retries=0,
            reason="",
            started_at=None,
            ended_at=None,
        ),
        now,
        context,
        may_exceed_slots=True,
        usd=entry.usd,
    )
    answered = with_assignment(event, event.routes[0].waiting, assignment.id)
    await complete_event(transaction, record, answered, ANSWERED, f"{root.id} continues as {assignment.id}")
    await log_event(transaction, AssignmentResumed(assignment_id=assignment.id, original_assignment_id=root.id), KING)
    return assignment


async def hand_out(
    transaction: Transaction,
    assignment: Assignment,
    now: datetime,
    context: KingContext,
    *,
    may_exceed_slots: bool = False,
    usd: float | None = None,
) -> Assignment:
    """Take the quotas of an assignment, store it and notify its General.

    `may_exceed_slots` lifts the limits on the number of assignments. The limit on money always applies.
    """
    wanted = quota_needs(assignment.target_general, assignment.repo, context, usd)
    assignment = msgspec.structs.replace(assignment, budget_usd=float(wanted[-1].amount))
    for need in wanted:
        record, quota = await load_current_quota(transaction, need.scope, now, context)
        taken = quota.hold(assignment.id, need.amount, may_exceed=may_exceed_slots and need.scope != MONEY)
        await save_quota(transaction, taken, record)
    await save(transaction, assignment)
    await transaction.publish(assignment_given(assignment.id, assignment.target_general))
    created = AssignmentCreated(
        assignment_id=assignment.id,
        event_type=assignment.type,
        target_general=assignment.target_general,
        priority=assignment.priority,
    )
    await log_event(transaction, created, KING)
    return assignment


async def start_chat_thread(
    transaction: Transaction, assignment: Assignment, event: ExternalEvent, now: datetime, context: KingContext
) -> None:
    """Queue the first message of the thread of an assignment."""
    where = f" in {assignment.repo}" if assignment.repo else ""
    await queue_message(
        transaction,
        MessageType.THREAD_START,
        f"{assignment.target_general} starts {assignment.type}{where} as {assignment.id}.",
        channel=context.channel(assignment.target_general),
        thread=assignment.id,
        today=context.day(now),
        context={
            "task_id": assignment.id,
            "event_id": event.id,
            "event_type": event.type,
            "general": assignment.target_general,
            "repo": assignment.repo,
            "source": event.source,
        },
    )


def _read_event(record: Record | None) -> ExternalEvent | None:
    """Return a waiting event. Return None if it is invalid, so that it does not block other events."""
    try:
        return msgspec.convert(record.doc, ExternalEvent) if record else None
    except msgspec.ValidationError as error:
        _log.warning("a waiting event is invalid", event_id=record.id if record else "", error=str(error))
        return None


def with_assignment(event: ExternalEvent, entry_id: str, assignment_id: str) -> ExternalEvent:
    """Return an event in which an assignment replaces a waiting entry."""
    routes = tuple(
        Route(general=route.general, rule=route.rule, assignment_id=assignment_id)
        if route.waiting == entry_id
        else route
        for route in event.routes
    )
    return msgspec.structs.replace(event, routes=routes)


def _limit(scope: str, context: KingContext) -> Decimal:
    settings = context.settings
    if scope == SOLDIERS:
        return Decimal(settings.soldiers)
    if scope == MONEY:
        return Decimal(str(settings.daily_usd))
    if scope.startswith(repo_scope("")):
        return Decimal(settings.soldiers_per_repo)
    package = context.package(scope.removeprefix(general_scope("")))
    return Decimal((package.general.policy.concurrency if package else None) or _UNLIMITED_SLOTS)
