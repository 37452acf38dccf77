"""The status of an event, derived from its routes in the transaction that changes one of them."""

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
# The first of these that an assignment of the event has decides the outcome of the event.
_DECISIVE = (AssignmentStatus.FAILED, AssignmentStatus.COMPLETED, AssignmentStatus.SKIPPED)


class _AssignmentEnd(NamedTuple):
    """How an assignment ended."""

    status: AssignmentStatus
    reason: str


async def complete_event(
    transaction: Transaction, record: Record, event: ExternalEvent, outcome: str, reason: str
) -> None:
    """Complete an event."""
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
    transaction: Transaction, record: Record, event: ExternalEvent, rested: Assignment | None = None
) -> None:
    """Store an event with the status that follows from its routes. `rested` also counts for its root."""
    given = [route.assignment_id for route in event.routes if route.assignment_id]
    if any(route.waiting for route in event.routes) or not given:
        await save(transaction, event, record)
        return
    ends = [await _end_of(transaction, assignment_id, rested) for assignment_id in given]
    if not all(ends):
        await save(transaction, msgspec.structs.replace(event, status=EventStatus.DISPATCHED), record)
        return
    statuses = {end.status for end in ends if end}
    outcome = next(status for status in _DECISIVE if status in statuses)
    status = EventStatus.FAILED if outcome is AssignmentStatus.FAILED else EventStatus.COMPLETED
    reason = "; ".join(end.reason for end in ends if end and end.reason)
    await save(transaction, msgspec.structs.replace(event, status=status, outcome=outcome, reason=reason), record)


async def _end_of(transaction: Transaction, assignment_id: str, rested: Assignment | None) -> _AssignmentEnd | None:
    """Return how an assignment ended, or None. An assignment that is no longer stored has ended."""
    record = await transaction.get(ASSIGNMENTS.name, assignment_id)
    if record is None:
        return _AssignmentEnd(AssignmentStatus.COMPLETED, "")
    own = msgspec.convert(record.doc, Assignment)
    speaks = rested if rested and rested.root_id == assignment_id and own.status not in ASSIGNMENTS.final else own
    return _AssignmentEnd(speaks.status, speaks.reason) if speaks.status in ASSIGNMENTS.final else None
