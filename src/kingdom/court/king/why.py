"""Why an event is where it is: what was decided about it, what it waits for, what became of it."""

from datetime import datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Query, Record
from kingdom.court.documents import Assignment, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.admission import current_rule
from kingdom.court.king.admission_rules import AdmissionLevel, AdmissionRule
from kingdom.court.king.answers import is_answer
from kingdom.court.king.assignments import SCHEDULE, load_current_quota, quota_needs
from kingdom.court.king.context import KingContext
from kingdom.court.king.routing import ConsideredRule, route_event
from kingdom.court.king.waiting_queue import ANSWER, HELD, READY, WAITING_ENTRIES, WaitingEntry, read_entry
from kingdom.court.quota import MONEY, SOLDIERS, Quota
from kingdom.court.records import ASSIGNMENTS, load
from kingdom.sentence import sentence, with_reason

# Counting who is ahead stops here.
AHEAD_MAX = 1000
ADMITTED = "nothing: it is admitted with the next look"
_LEVEL_TEXT = {
    AdmissionLevel.EVERYTHING: "everything",
    AdmissionLevel.NORMAL: "what is normal or high",
    AdmissionLevel.HIGH: "what is high",
    AdmissionLevel.NOTHING: "nothing",
}


class WaitReason(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event waits for a General, what holds it there, and how many are ahead in the same line."""

    general: str
    rule: str
    priority: Priority
    since: datetime
    line: str
    held_by: str
    ahead: int


class GivenAssignment(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id"}):
    """An assignment that an event became, or with which one of those went on."""

    assignment_id: str
    general: str
    type: str
    status: str
    reason: str
    workflow_id: str


class EventExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to be said of one event; `considered` is how the Generals of now would be judged."""

    event: ExternalEvent
    standing: str
    considered: tuple[ConsideredRule, ...]
    waits: tuple[WaitReason, ...]
    assignments: tuple[GivenAssignment, ...]


async def explain_event(
    transaction: Transaction, event_id: str, now: datetime, context: KingContext
) -> EventExplanation:
    """Return why an event is where it is."""
    _, event = await load(transaction, ExternalEvent, event_id)
    waits = [await _wait_reason(transaction, each, now, context) for each in event.routes if each.waiting]
    given = [
        found
        for each in event.routes
        if each.assignment_id
        for found in await _given_assignments(transaction, each.assignment_id)
    ]
    decides_itself = is_answer(event) or event.source == SCHEDULE
    return EventExplanation(
        event=event,
        standing=_describe_status(event),
        considered=() if decides_itself else route_event(event, context.packages()).considered,
        waits=tuple(wait for wait in waits if wait),
        assignments=tuple(given),
    )


def _describe_status(event: ExternalEvent) -> str:
    """Return in a sentence how far an event has come."""
    match event.status:
        case EventStatus.PENDING if not any(route.waiting for route in event.routes):
            return "The King has not decided about it yet: is he running?"
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
    if record is None or record.owner is None:
        return None
    entry = read_entry(record)
    line = await transaction.find(Query(kind=WAITING_ENTRIES.name, owner=record.owner, limit=AHEAD_MAX))
    return WaitReason(
        general=entry.general,
        rule=entry.rule,
        priority=entry.priority,
        since=entry.since,
        line=record.owner,
        held_by=await _held_by(transaction, record, entry, now, context),
        ahead=sum(each.id < record.id for each in line),
    )


async def _held_by(
    transaction: Transaction, record: Record, entry: WaitingEntry, now: datetime, context: KingContext
) -> str:
    """Return what keeps a entry from being taken now."""
    if record.owner == HELD and record.due_at:
        return f"held back for a newer event until {record.due_at.isoformat(timespec='seconds')}"
    scopes = [need.scope for need in quota_needs(entry.general, entry.repo, context)]
    if record.owner == ANSWER:
        _, money = await load_current_quota(transaction, MONEY, now, context)
        return f"goes on as soon as there is money: {_describe_quota(money)}"
    if record.owner in scopes:
        _, quota = await load_current_quota(transaction, record.owner, now, context)
        return _describe_quota(quota)
    if record.owner != READY:
        return entry.reason
    rule = await current_rule(transaction, now, context)
    if not rule.admits(entry.rank, now):
        return _describe_rule(rule)
    _, soldiers = await load_current_quota(transaction, SOLDIERS, now, context)
    return ADMITTED if soldiers.fits() else _describe_quota(soldiers)


def _describe_rule(rule: AdmissionRule) -> str:
    return f"the gate of {rule.name} level {_LEVEL_TEXT[rule.level]} begin: {rule.reason}"


def _describe_quota(quota: Quota) -> str:
    holders = ", ".join(quota.holders) or "nobody"
    if quota.scope == MONEY:
        return f"${quota.spent:.2f} spent and ${quota.held:.2f} set aside of ${quota.limit:.2f}, held by {holders}"
    return f"{quota.scope}: {quota.held} of {quota.limit} taken, held by {holders}"


async def _given_assignments(transaction: Transaction, assignment_id: str) -> list[GivenAssignment]:
    """Return an assignment and those that went on with it."""
    found = await transaction.find(Query(kind=ASSIGNMENTS.name, owner=assignment_id))
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
        for each in (msgspec.convert(record.doc, Assignment) for record in found)
    ]


def _names(routes: tuple[Route, ...]) -> str:
    return ", ".join(f"{route.general} by {route.rule}" for route in routes if route.waiting or route.assignment_id)
