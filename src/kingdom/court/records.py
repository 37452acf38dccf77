"""The record kinds of the court's documents, and the functions on them that several roles use."""

from datetime import date, timedelta
from typing import Any, TypeVar

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Adoption, Record, RecordKind, read_document
from kingdom.bus.sequence import next_id
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import EventDetected
from kingdom.clock import utc_now
from kingdom.court.documents import (
    Assignment,
    AssignmentStatus,
    EventStatus,
    ExternalEvent,
    Message,
    MessageStatus,
    MessageType,
    Urgency,
)
from kingdom.court.streams import event_received, message_queued
from kingdom.errors import NotFound
from kingdom.workflow.records import RESULT

# How long a received event is recognized as already seen.
SEEN_KEPT = timedelta(days=30)
SEEN = "seen"
_QUEUE_KEPT = timedelta(days=7)
_RESULTS_KEPT = timedelta(days=7)
# The states of records that have no status of their own.
CURRENT = "current"
ENDED = "ended"


def _adopted(document: Any) -> Record:
    """Return the event that a person dropped into the queue, as a new record."""
    event = ExternalEvent.read(document).as_new()
    return Record(kind="event", id=event.id, state=event.status, doc=msgspec.to_builtins(event))


EVENTS = RecordKind(
    name="event",
    directories={
        EventStatus.PENDING: "queue/events/pending",
        EventStatus.DISPATCHED: "queue/events/dispatched",
        EventStatus.COMPLETED: "queue/events/completed",
        EventStatus.FAILED: "queue/events/completed",
    },
    final=frozenset({EventStatus.COMPLETED, EventStatus.FAILED}),
    retention=_QUEUE_KEPT,
    adoption=Adoption(state=EventStatus.PENDING, read=_adopted, announce=lambda record: event_received(record.id)),
)
ASSIGNMENTS = RecordKind(
    name="task",
    directories={
        AssignmentStatus.PENDING: "queue/tasks/pending",
        AssignmentStatus.IN_PROGRESS: "queue/tasks/in_progress",
        AssignmentStatus.NEEDS_HUMAN: "queue/tasks/in_progress",
        AssignmentStatus.COMPLETED: "queue/tasks/completed",
        AssignmentStatus.FAILED: "queue/tasks/completed",
        AssignmentStatus.SKIPPED: "queue/tasks/completed",
    },
    final=frozenset({AssignmentStatus.COMPLETED, AssignmentStatus.FAILED, AssignmentStatus.SKIPPED}),
    retention=_QUEUE_KEPT,
    indexes=("root",),
)
MESSAGES = RecordKind(
    name="message",
    directories={MessageStatus.PENDING: "queue/messages/pending", MessageStatus.SENT: "queue/messages/sent"},
    final=frozenset({MessageStatus.SENT}),
    retention=_QUEUE_KEPT,
)
# The final result of an assignment, and the report of its agent under `{id}-raw`, which its soldier host writes.
RESULTS = RecordKind(
    name=RESULT, directories={ENDED: "state/results"}, final=frozenset({ENDED}), retention=_RESULTS_KEPT
)
KINDS = (EVENTS, ASSIGNMENTS, MESSAGES, RESULTS)

_Document = TypeVar("_Document", ExternalEvent, Assignment, Message)
_KIND_OF: dict[type, RecordKind] = {ExternalEvent: EVENTS, Assignment: ASSIGNMENTS, Message: MESSAGES}
_NOUNS: dict[type, str] = {ExternalEvent: "event", Assignment: "assignment", Message: "message"}
_LIST_HINTS: dict[type, str] = {
    ExternalEvent: ": `kingdom event list` shows all events",
    Assignment: ": `kingdom assignment list` shows all assignments",
}


async def load(transaction: Transaction, kind: type[_Document], document_id: str) -> tuple[Record, _Document]:
    """Load an event, an assignment or a message."""
    record = await transaction.get(_KIND_OF[kind].name, document_id)
    if record is None:
        raise NotFound(f"there is no {_NOUNS[kind]} {document_id!r}{_LIST_HINTS.get(kind, '')}")
    return record, read_document(record.doc, kind)


async def save(transaction: Transaction, document: _Document, record: Record | None = None) -> None:
    """Store an event, an assignment or a message under its own status."""
    await transaction.put(
        Record(
            kind=_KIND_OF[type(document)].name,
            id=document.id,
            version=record.version if record else 0,
            state=document.status,
            indexed=_indexed(document),
            doc=msgspec.to_builtins(document),
        )
    )


async def receive_event(
    transaction: Transaction, event: ExternalEvent, actor: str, seen_kept: timedelta = SEEN_KEPT
) -> bool:
    """Store a new event and notify the King. Return False if it was received before, or if its id is in the queue."""
    if not await transaction.once(SEEN, event.id, seen_kept):
        return False
    if await transaction.get(EVENTS.name, event.id) is not None:
        # A person put the event into the queue, which does not mark it as seen.
        return False
    await save(transaction, event)
    await transaction.publish(event_received(event.id))
    detected = EventDetected(event_id=event.id, source=event.source, event_type=event.type)
    await log_event(transaction, detected, actor)
    return True


async def queue_message(
    transaction: Transaction,
    kind: MessageType,
    content: str,
    *,
    channel: str,
    thread: str,
    today: date,
    context: dict[str, Any] | None = None,
    urgency: Urgency = Urgency.NORMAL,
) -> Message:
    """Queue a message for the Envoy. Messages with the same `thread` are sent in order."""
    message = Message(
        id=await next_id(transaction, "msg", today),
        type=kind,
        channel=channel,
        urgency=urgency,
        content=content,
        context=context or {},
        created_at=utc_now(),
        status=MessageStatus.PENDING,
    )
    await save(transaction, message)
    await transaction.publish(message_queued(message.id, thread))
    return message


def _indexed(document: ExternalEvent | Assignment | Message) -> dict[str, str]:
    return {"root": document.root_id} if isinstance(document, Assignment) else {}
