"""Why an event is where it is: what was decided about it, what it waits for, what became of it."""

from datetime import datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.admission import gate_now
from kingdom.court.king.answers import is_answer
from kingdom.court.king.assigning import SCHEDULE, needs, quota_now
from kingdom.court.king.gates import Gate, Lets
from kingdom.court.king.routing import Considered, route
from kingdom.court.king.terms import Terms
from kingdom.court.king.waiting import ANSWER, HELD, PLACES, READY, WaitingPlace, read_place
from kingdom.court.quota import MONEY, SOLDIERS, Quota
from kingdom.court.records import ASSIGNMENTS, load
from kingdom.text import sentence, with_reason

# Counting who is ahead stops here.
AHEAD_MAX = 1000
ADMITTED = "nothing: it is admitted with the next look"
_LETS = {
    Lets.EVERYTHING: "everything",
    Lets.NORMAL: "what is normal or high",
    Lets.HIGH: "what is high",
    Lets.NOTHING: "nothing",
}


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event waits for a General, what holds it there, and how many are ahead in the same line."""

    general: str
    rule: str
    priority: Priority
    since: datetime
    line: str
    held_by: str
    ahead: int


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment that an event became, or with which one of those went on."""

    task_id: str
    general: str
    type: str
    status: str
    reason: str
    workflow_id: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to be said of one event; `considered` is how the Generals of now would be judged."""

    event: ExternalEvent
    standing: str
    considered: tuple[Considered, ...]
    waits: tuple[Wait, ...]
    assignments: tuple[Given, ...]


async def explain(transaction: Transaction, event_id: str, now: datetime, terms: Terms) -> Explanation:
    """Return why an event is where it is."""
    _, event = await load(transaction, ExternalEvent, event_id)
    waits = [await _wait(transaction, each, now, terms) for each in event.routes if each.waiting]
    given = [found for each in event.routes if each.task_id for found in await _given(transaction, each.task_id)]
    decides_itself = is_answer(event) or event.source == SCHEDULE
    return Explanation(
        event=event,
        standing=_standing(event),
        considered=() if decides_itself else route(event, terms.packages()).considered,
        waits=tuple(wait for wait in waits if wait),
        assignments=tuple(given),
    )


def _standing(event: ExternalEvent) -> str:
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


async def _wait(transaction: Transaction, given: Route, now: datetime, terms: Terms) -> Wait | None:
    record = await transaction.get(PLACES.name, given.waiting)
    if record is None or record.owner is None:
        return None
    place = read_place(record)
    line = await transaction.find(RecordQuery(kind=PLACES.name, owner=record.owner, limit=AHEAD_MAX))
    return Wait(
        general=place.general,
        rule=place.rule,
        priority=place.priority,
        since=place.since,
        line=record.owner,
        held_by=await _held_by(transaction, record, place, now, terms),
        ahead=sum(each.id < record.id for each in line),
    )


async def _held_by(transaction: Transaction, record: Record, place: WaitingPlace, now: datetime, terms: Terms) -> str:
    """Return what keeps a place from being taken now."""
    if record.owner == HELD and record.due_at:
        return f"held back for a newer event until {record.due_at.isoformat(timespec='seconds')}"
    scopes = [need.scope for need in needs(place.general, place.repo, terms)]
    if record.owner == ANSWER:
        _, money = await quota_now(transaction, MONEY, now, terms)
        return f"goes on as soon as there is money: {_fullness(money)}"
    if record.owner in scopes:
        _, quota = await quota_now(transaction, record.owner, now, terms)
        return _fullness(quota)
    if record.owner != READY:
        return place.reason
    gate = await gate_now(transaction, now, terms)
    if not gate.admits(place.rank, now):
        return _closed(gate)
    _, soldiers = await quota_now(transaction, SOLDIERS, now, terms)
    return ADMITTED if soldiers.fits() else _fullness(soldiers)


def _closed(gate: Gate) -> str:
    return f"the gate of {gate.name} lets {_LETS[gate.lets]} begin: {gate.reason}"


def _fullness(quota: Quota) -> str:
    holders = ", ".join(quota.holders) or "nobody"
    if quota.scope == MONEY:
        return f"${quota.spent:.2f} spent and ${quota.held:.2f} set aside of ${quota.limit:.2f}, held by {holders}"
    return f"{quota.scope}: {quota.held} of {quota.limit} taken, held by {holders}"


async def _given(transaction: Transaction, task_id: str) -> list[Given]:
    """Return an assignment and those that went on with it."""
    found = await transaction.find(RecordQuery(kind=ASSIGNMENTS.name, owner=task_id))
    found = found or [record for record in [await transaction.get(ASSIGNMENTS.name, task_id)] if record]
    return [
        Given(
            task_id=each.id,
            general=each.target_general,
            type=each.type,
            status=each.status,
            reason=each.reason,
            workflow_id=each.workflow_id,
        )
        for each in (msgspec.convert(record.doc, Assignment) for record in found)
    ]


def _names(routes: tuple[Route, ...]) -> str:
    return ", ".join(f"{route.general} by {route.rule}" for route in routes if route.waiting or route.task_id)
