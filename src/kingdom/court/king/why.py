"""Explain an event: how it was routed, what it waits for, and what became of it."""

from datetime import datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import OnUnreadable, Record, RecordQuery, ignore_unreadable, read_documents
from kingdom.court.documents import Assignment, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.admission import ADMISSION_RECORDS, current_rule, current_slot_limit
from kingdom.court.king.admission_rules import AdmissionLevel, AdmissionRule
from kingdom.court.king.answers import is_answer
from kingdom.court.king.assignments import SCHEDULE, load_current_quota, quota_needs
from kingdom.court.king.context import KingContext
from kingdom.court.king.routing import ConsideredRule, route_event
from kingdom.court.king.waiting_queue import (
    ANSWER,
    HELD,
    READY,
    WAITING_ENTRIES,
    WaitingEntry,
    line_of,
    line_query,
    read_entry,
)
from kingdom.court.quota import MONEY, SOLDIERS, Quota, full_reason
from kingdom.court.records import ASSIGNMENTS, EVENTS, load
from kingdom.text import sentence, with_reason

# At most this many entries ahead of an event are counted.
AHEAD_MAX = 1000
ADMITTED = "nothing, the next round admits it"
_LEVEL_TEXT = {
    AdmissionLevel.EVERYTHING: "all work starts",
    AdmissionLevel.NORMAL: "no low-priority work starts",
    AdmissionLevel.HIGH: "only high-priority work starts",
    AdmissionLevel.NOTHING: "no new work starts",
}


class WaitReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why an event waits for a General.

    `line` is what its entry waits for, and `ahead` is the number of earlier entries that wait for the same.
    """

    general: str
    rule: str
    priority: Priority
    since: datetime
    line: str
    held_by: str
    ahead: int


class GivenAssignment(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id"}):
    """An assignment of an event, or a later assignment that resumed it."""

    assignment_id: str
    general: str
    type: str
    status: str
    reason: str
    workflow_id: str


class EventExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one event. `considered` shows how the current Generals would match it."""

    event: ExternalEvent
    status_text: str = msgspec.field(name="standing")
    considered: tuple[ConsideredRule, ...]
    waits: tuple[WaitReason, ...]
    assignments: tuple[GivenAssignment, ...]


async def explain_event(
    transaction: Transaction,
    event_id: str,
    now: datetime,
    context: KingContext,
    on_unreadable: OnUnreadable = ignore_unreadable,
) -> EventExplanation:
    """Return the explanation of an event."""
    # Read everything that may hold back an event together, so that an explanation costs few statements.
    await transaction.read_ahead([(EVENTS.name, event_id), *ADMISSION_RECORDS])
    _, event = await load(transaction, ExternalEvent, event_id)
    waits = [await _wait_reason(transaction, each, now, context) for each in event.routes if each.waiting]
    given = [
        found
        for each in event.routes
        if each.assignment_id
        for found in await _given_assignments(transaction, each.assignment_id, on_unreadable)
    ]
    has_fixed_route = is_answer(event) or event.source == SCHEDULE
    return EventExplanation(
        event=event,
        status_text=_describe_status(event),
        considered=() if has_fixed_route else route_event(event, context.packages()).considered,
        waits=tuple(wait for wait in waits if wait),
        assignments=tuple(given),
    )


def _describe_status(event: ExternalEvent) -> str:
    """Return the status of an event as a sentence."""
    match event.status:
        case EventStatus.PENDING if not any(route.waiting for route in event.routes):
            return "The King has not routed it yet: `kingdom status` shows whether the King runs."
        case EventStatus.PENDING:
            return f"It waits for {_names(event.routes)}."
        case EventStatus.DISPATCHED:
            return f"It was given to {_names(event.routes)}."
    outcome = f", {event.outcome}" if event.outcome not in ("", event.status) else ""
    return sentence(with_reason(f"It is {event.status}{outcome}", event.reason))


async def _wait_reason(
    transaction: Transaction, given: Route, now: datetime, context: KingContext
) -> WaitReason | None:
    record = await transaction.get(WAITING_ENTRIES.name, given.waiting)
    line = line_of(record) if record else None
    if record is None or line is None:
        return None
    entry = read_entry(record)
    first = await transaction.find(line_query(line, AHEAD_MAX))
    return WaitReason(
        general=entry.general,
        rule=entry.rule,
        priority=entry.priority,
        since=entry.since,
        line=line,
        held_by=await _held_by(transaction, record, entry, now, context),
        ahead=sum(each.id < record.id for each in first),
    )


async def _held_by(
    transaction: Transaction, record: Record, entry: WaitingEntry, now: datetime, context: KingContext
) -> str:
    """Return why an entry is not admitted now."""
    line = line_of(record)
    if line == HELD and record.due_at:
        return f"held back until {record.due_at.isoformat(timespec='seconds')} in case a newer event follows"
    scopes = [need.scope for need in quota_needs(entry.general, entry.repo, context)]
    if line == ANSWER:
        _, money = await load_current_quota(transaction, MONEY, now, context)
        return f"resumes as soon as there is budget: {_describe_quota(money)}"
    if line in scopes:
        _, quota = await load_current_quota(transaction, line, now, context)
        return _describe_quota(quota)
    if line != READY:
        return entry.reason
    rule = await current_rule(transaction, now, context)
    if not rule.admits(entry.rank, now):
        return _describe_rule(rule)
    _, soldiers = await load_current_quota(transaction, SOLDIERS, now, context)
    limit = await current_slot_limit(transaction, context)
    if limit.allows(soldiers):
        return ADMITTED
    return f"{limit.text}, held by {_holders(soldiers)}" if soldiers.fits() else _describe_quota(soldiers)


def _describe_rule(rule: AdmissionRule) -> str:
    return f"{rule.reason}, so {_LEVEL_TEXT[rule.level]}"


def _holders(quota: Quota) -> str:
    return ", ".join(quota.holders) or "no assignment"


def _describe_quota(quota: Quota) -> str:
    holders = _holders(quota)
    if quota.scope == MONEY:
        return f"${quota.spent:.2f} spent and ${quota.held:.2f} reserved of ${quota.limit:.2f}, held by {holders}"
    return f"{full_reason(quota.scope)} ({quota.held} of {quota.limit}), held by {holders}"


async def _given_assignments(
    transaction: Transaction, assignment_id: str, on_unreadable: OnUnreadable
) -> list[GivenAssignment]:
    """Return an assignment and the assignments that resumed it."""
    found = await transaction.find(RecordQuery(kind=ASSIGNMENTS.name, index="root", value=assignment_id))
    found = found or [record for record in [await transaction.get(ASSIGNMENTS.name, assignment_id)] if record]
    return [
        GivenAssignment(
            assignment_id=each.id,
            general=each.target_general,
            type=each.type,
            status=each.status,
            reason=each.reason,
            workflow_id=each.workflow_id,
        )
        for each in read_documents(found, Assignment, on_unreadable)
    ]


def _names(routes: tuple[Route, ...]) -> str:
    return ", ".join(f"{route.general} by {route.rule}" for route in routes if route.waiting or route.assignment_id)
