"""The status of an event. It is derived from the event's routes, in the transaction that changes a route."""

from typing import NamedTuple

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import EventDiscarded
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent
from kingdom.court.king.context import KING
from kingdom.court.records import ASSIGNMENTS, save

UNROUTED = "unrouted"
SUPERSEDED = "superseded"
IGNORED = "ignored"
ANSWERED = "answered"
# The outcome of an event is the first of these statuses that one of its assignments has.
_OUTCOMES_BY_PRECEDENCE = (AssignmentStatus.FAILED, AssignmentStatus.COMPLETED, AssignmentStatus.SKIPPED)


class _AssignmentEnd(NamedTuple):
    """How an assignment ended."""

    status: AssignmentStatus
    reason: str


async def complete_event(
    transaction: Transaction, record: Record, event: ExternalEvent, outcome: str, reason: str
) -> None:
    """Complete an event with an outcome and its reason."""
    ended = msgspec.structs.replace(event, status=EventStatus.COMPLETED, outcome=outcome, reason=reason)
    await save(transaction, ended, record)


async def discard_event(
    transaction: Transaction, record: Record, event: ExternalEvent, outcome: str, reason: str
) -> None:
    """Complete an event without an assignment, and log it."""
    await complete_event(transaction, record, event, outcome, reason)
    discarded = EventDiscarded(event_id=event.id, event_type=event.type, reason=reason)
    await log_event(transaction, discarded, KING)


async def update_event_status(
    transaction: Transaction, record: Record, event: ExternalEvent, just_ended: Assignment | None = None
) -> None:
    """Store an event with the status that follows from its routes.

    If the assignment `just_ended` resumed an earlier assignment, the earlier assignment has ended too.
    """
    given = [route.assignment_id for route in event.routes if route.assignment_id]
    if any(route.waiting for route in event.routes) or not given:
        await save(transaction, event, record)
        return
    ends = [await _find_end(transaction, assignment_id, just_ended) for assignment_id in given]
    if not all(ends):
        await save(transaction, msgspec.structs.replace(event, status=EventStatus.DISPATCHED), record)
        return
    statuses = {end.status for end in ends if end}
    outcome = next(status for status in _OUTCOMES_BY_PRECEDENCE if status in statuses)
    status = EventStatus.FAILED if outcome is AssignmentStatus.FAILED else EventStatus.COMPLETED
    reason = "; ".join(end.reason for end in ends if end and end.reason)
    await save(transaction, msgspec.structs.replace(event, status=status, outcome=outcome, reason=reason), record)


async def _find_end(
    transaction: Transaction, assignment_id: str, just_ended: Assignment | None
) -> _AssignmentEnd | None:
    """Return how an assignment ended, or None if it has not. An assignment that is no longer stored has ended."""
    record = await transaction.get(ASSIGNMENTS.name, assignment_id)
    if record is None:
        return _AssignmentEnd(AssignmentStatus.COMPLETED, "")
    latest = msgspec.convert(record.doc, Assignment)
    if just_ended and just_ended.root_id == assignment_id and latest.status not in ASSIGNMENTS.final:
        latest = just_ended
    return _AssignmentEnd(latest.status, latest.reason) if latest.status in ASSIGNMENTS.final else None
