"""Send events to the court."""

from typing import Any

from kingdom.bus.port import Transaction
from kingdom.bus.record import read_document
from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.records import EVENTS, receive_event
from kingdom.errors import Permanent
from kingdom.ids import new_id


def event_defaults(source: str) -> dict[str, Any]:
    """Return the fields of an event that a person sends, before the person sets some of them."""
    return {
        "id": new_id(f"evt-{source}"),
        "type": "",
        "source": "",
        "repo": None,
        "payload": {},
        "priority": Priority.NORMAL,
        "created_at": utc_now().isoformat(),
        "status": EventStatus.PENDING,
    }


def source_of(event_id: str, default: str) -> str:
    """Return the SOURCE of an id such as evt-SOURCE-123, or `default` for any other id."""
    parts = event_id.split("-")
    return parts[1] if event_id.startswith("evt-") and parts[1] else default


async def send_event(transaction: Transaction, *, event: ExternalEvent, actor: str) -> tuple[ExternalEvent, bool]:
    """Store an event unless its id exists; return the stored event and whether it is new."""
    if await receive_event(transaction, event=event, actor=actor):
        return event, True
    record = await transaction.get(EVENTS.name, event.id)
    if record is None:
        raise Permanent(f"event {event.id} ended and is no longer stored: give the new event another id")
    known = read_document(record.doc, ExternalEvent)
    if (known.type, known.repo, known.payload) != (event.type, event.repo, event.payload):
        raise Permanent(f"event {event.id} already exists with other content: give this event another id")
    return known, False
