"""Making an assignment: slots, money, the assignment itself and the word to its General, all in one transaction."""

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
from kingdom.court.king.outcomes import ANSWERED, IGNORED, end_event, settle_event
from kingdom.court.king.terms import KING, Terms
from kingdom.court.king.waiting import WaitingPlace, end_place, read_place
from kingdom.court.package import Policy
from kingdom.court.quota import (
    MONEY,
    ONE,
    SOLDIERS,
    Quota,
    general_scope,
    load_quota,
    repo_scope,
    save_quota,
)
from kingdom.court.records import ASSIGNMENTS, EVENTS, save, tell_people
from kingdom.court.streams import assignment_given

SCHEDULE = "schedule"
_UNLIMITED = 1_000_000
_log = structlog.get_logger("kingdom.court")


class Need(NamedTuple):
    """What an assignment takes of the quota of a scope."""

    scope: str
    amount: Decimal = ONE


def needs(general: str, repo: str | None, terms: Terms, usd: float | None = None) -> list[Need]:
    """Return what an assignment takes, what is shared by all first and money last: `usd`, or what its General says."""
    package = terms.package(general)
    policy = package.general.policy if package else Policy()
    settings = terms.settings
    budgets = (usd, policy.budget_usd, settings.reserved_usd)
    reserved = next(each for each in budgets if each is not None)
    own = [Need(general_scope(general))] if policy.concurrency else []
    of_repo = [Need(repo_scope(repo))] if repo else []
    return [Need(SOLDIERS), *own, *of_repo, Need(MONEY, Decimal(str(min(reserved, settings.daily_usd))))]


def scopes(assignment: Assignment) -> list[str]:
    """Return every quota that an assignment may hold a part of."""
    # Earlier versions counted a repository as it was written.
    written = [f"{repo_scope('')}{assignment.repo}"] if assignment.repo else []
    of_repo = dict.fromkeys([repo_scope(assignment.repo), *written]) if assignment.repo else ()
    return [SOLDIERS, general_scope(assignment.target_general), *of_repo, MONEY]


async def quota_now(transaction: Transaction, scope: str, now: datetime, terms: Terms) -> tuple[Record, Quota]:
    """Return a quota with the record that holds it or shall hold it, under the limit of now."""
    record, quota = await load_quota(transaction, scope, _limit(scope, terms))
    return record, as_of(quota, now, terms)


def as_of(quota: Quota, now: datetime, terms: Terms) -> Quota:
    """Return a quota under the limit of now; money counts by the day."""
    counted = msgspec.structs.replace(quota, limit=_limit(quota.scope, terms))
    return counted.during(str(terms.day(now))) if quota.scope == MONEY else counted


async def assign(transaction: Transaction, record: Record, now: datetime, terms: Terms) -> Assignment | None:
    """Make the assignment that a place waits for, and end the place; None where its event is gone or spoilt."""
    place = read_place(record)
    await end_place(transaction, record)
    event_record = await transaction.get(EVENTS.name, place.event_id)
    event = _read(event_record)
    if event_record is None or event is None:
        return None
    if place.answers:
        return await _resume(transaction, event_record, event, place, now, terms)
    assignment = await _give(
        transaction,
        Assignment(
            id=await next_id(transaction, "task", terms.day(now)),
            event_id=schedule_id(event) or event.id,
            cause=event.id if schedule_id(event) else "",
            target_general=place.general,
            type=event.type,
            payload=event.payload,
            priority=place.priority,
            created_at=now,
            status=AssignmentStatus.PENDING,
            repo=place.repo,
        ),
        now,
        terms,
    )
    await settle_event(transaction, event_record, _with_task(event, record.id, assignment.id))
    said = EventDispatched(event_id=event.id, assignment_id=assignment.id, target_general=place.general)
    await log_event(transaction, said, KING)
    await _start_thread(transaction, assignment, event, now, terms)
    return assignment


def schedule_id(event: ExternalEvent) -> str:
    """Return what an assignment names as its event where a schedule fired it, else nothing."""
    if event.source != SCHEDULE:
        return ""
    return event.id.removeprefix("evt-").rpartition("-")[0]


async def _resume(
    transaction: Transaction, record: Record, event: ExternalEvent, place: WaitingPlace, now: datetime, terms: Terms
) -> Assignment | None:
    """Let an assignment go on with the answer of a person, beyond the slots if need be."""
    found = await transaction.get(ASSIGNMENTS.name, place.answers)
    if found is None:
        await end_event(transaction, record, event, IGNORED, f"there is no assignment {place.answers} any more")
        return None
    root = msgspec.convert(found.doc, Assignment)
    if root.status in ASSIGNMENTS.final:
        await end_event(transaction, record, event, IGNORED, f"{root.id} has ended meanwhile: {root.reason}")
        return None
    assignment = await _give(
        transaction,
        msgspec.structs.replace(
            root,
            id=await next_id(transaction, "task", terms.day(now)),
            root=root.id,
            type=RESUME,
            payload=dict(event.payload),
            priority=place.priority,
            created_at=now,
            status=AssignmentStatus.PENDING,
            retries=0,
            reason="",
            started_at=None,
            ended_at=None,
        ),
        now,
        terms,
        beyond=True,
        usd=place.usd,
    )
    answered = _with_task(event, event.routes[0].waiting, assignment.id)
    await end_event(transaction, record, answered, ANSWERED, f"{root.id} goes on as {assignment.id}")
    await log_event(transaction, AssignmentResumed(assignment_id=assignment.id, original_assignment_id=root.id), KING)
    return assignment


async def _give(
    transaction: Transaction,
    assignment: Assignment,
    now: datetime,
    terms: Terms,
    *,
    beyond: bool = False,
    usd: float | None = None,
) -> Assignment:
    """Take what an assignment needs, store it and tell its General; `beyond` passes limits, but never that of money."""
    wanted = needs(assignment.target_general, assignment.repo, terms, usd)
    assignment = msgspec.structs.replace(assignment, budget_usd=float(wanted[-1].amount))
    for need in wanted:
        record, quota = await quota_now(transaction, need.scope, now, terms)
        taken = quota.hold(assignment.id, need.amount, beyond=beyond and need.scope != MONEY)
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


async def _start_thread(
    transaction: Transaction, assignment: Assignment, event: ExternalEvent, now: datetime, terms: Terms
) -> None:
    where = f" in {assignment.repo}" if assignment.repo else ""
    await tell_people(
        transaction,
        MessageType.THREAD_START,
        f"{assignment.target_general} takes on {event.type}{where} as {assignment.id}.",
        channel=terms.channel(assignment.target_general),
        thread=assignment.id,
        today=terms.day(now),
        context={
            "task_id": assignment.id,
            "event_id": event.id,
            "event_type": event.type,
            "general": assignment.target_general,
            "repo": assignment.repo,
            "source": event.source,
        },
    )


def _read(record: Record | None) -> ExternalEvent | None:
    """Return an event that waited; nobody else shall wait for one that a person has spoilt."""
    try:
        return msgspec.convert(record.doc, ExternalEvent) if record else None
    except msgspec.ValidationError as error:
        _log.warning("an event that waited cannot be read", event_id=record.id if record else "", error=str(error))
        return None


def _with_task(event: ExternalEvent, place_id: str, task_id: str) -> ExternalEvent:
    routes = tuple(
        Route(general=route.general, rule=route.rule, task_id=task_id) if route.waiting == place_id else route
        for route in event.routes
    )
    return msgspec.structs.replace(event, routes=routes)


def _limit(scope: str, terms: Terms) -> Decimal:
    settings = terms.settings
    if scope == SOLDIERS:
        return Decimal(settings.soldiers)
    if scope == MONEY:
        return Decimal(str(settings.daily_usd))
    if scope.startswith(repo_scope("")):
        return Decimal(settings.soldiers_per_repo)
    package = terms.package(scope.removeprefix(general_scope("")))
    return Decimal((package.general.policy.concurrency if package else None) or _UNLIMITED)
