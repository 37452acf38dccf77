"""What becomes of an event: derived from its routes, in the transaction that changes one of them."""

from typing import NamedTuple

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import EventDiscarded
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent
from kingdom.court.king.terms import KING
from kingdom.court.records import ASSIGNMENTS, save

UNROUTED = "unrouted"
SUPERSEDED = "superseded"
IGNORED = "ignored"
ANSWERED = "answered"
# Of several assignments the first of these that occurs tells how the event ended.
_TELLING = (AssignmentStatus.FAILED, AssignmentStatus.COMPLETED, AssignmentStatus.SKIPPED)


class _End(NamedTuple):
    """How an assignment ended."""

    status: AssignmentStatus
    reason: str


async def end_event(transaction: Transaction, record: Record, event: ExternalEvent, outcome: str, reason: str) -> None:
    """Complete an event that needs nobody any more."""
    ended = msgspec.structs.replace(event, status=EventStatus.COMPLETED, outcome=outcome, reason=reason)
    await save(transaction, ended, record)


async def discard(transaction: Transaction, record: Record, event: ExternalEvent, outcome: str, reason: str) -> None:
    """Complete an event that becomes no assignment, and say so."""
    await end_event(transaction, record, event, outcome, reason)
    discarded = EventDiscarded(event_id=event.id, event_type=event.type, reason=reason)
    await log_event(transaction, discarded, KING)


async def settle_event(
    transaction: Transaction, record: Record, event: ExternalEvent, rested: Assignment | None = None
) -> None:
    """Store an event in the status that follows from its routes; `rested` speaks for its root too."""
    given = [route.task_id for route in event.routes if route.task_id]
    if any(route.waiting for route in event.routes) or not given:
        await save(transaction, event, record)
        return
    ends = [await _end_of(transaction, task_id, rested) for task_id in given]
    if not all(ends):
        await save(transaction, msgspec.structs.replace(event, status=EventStatus.DISPATCHED), record)
        return
    statuses = {end.status for end in ends if end}
    outcome = next(status for status in _TELLING if status in statuses)
    status = EventStatus.FAILED if outcome is AssignmentStatus.FAILED else EventStatus.COMPLETED
    reason = "; ".join(end.reason for end in ends if end and end.reason)
    await save(transaction, msgspec.structs.replace(event, status=status, outcome=outcome, reason=reason), record)


async def _end_of(transaction: Transaction, task_id: str, rested: Assignment | None) -> _End | None:
    """Return how an assignment ended, if it did; one that is gone from the store has ended long ago."""
    record = await transaction.get(ASSIGNMENTS.name, task_id)
    if record is None:
        return _End(AssignmentStatus.COMPLETED, "")
    own = msgspec.convert(record.doc, Assignment)
    speaks = rested if rested and rested.root_id == task_id and own.status not in ASSIGNMENTS.final else own
    return _End(speaks.status, speaks.reason) if speaks.status in ASSIGNMENTS.final else None
