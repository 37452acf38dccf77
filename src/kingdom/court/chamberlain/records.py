"""What the Chamberlain stores, and how he logs and notifies."""

from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.chronicle.catalog import to_log_entry
from kingdom.chronicle.events import InternalEvent
from kingdom.court.chamberlain.calendar import day_of
from kingdom.court.documents import MessageType, Urgency
from kingdom.court.records import CURRENT, queue_message
from kingdom.court.sessions import SESSIONS

CHAMBERLAIN = "chamberlain"
# The sums of the log, with the cursor up to which it was read.
STATISTICS = RecordKind(name="statistics", directories={CURRENT: "logs/analysis"})
STATS = "stats"
HEALTH = RecordKind(name="health", directories={CURRENT: "state/health"})
# State between two rounds: the budget, outages of roles, daily jobs.
STATE = RecordKind(name=CHAMBERLAIN, directories={CURRENT: "state/chamberlain"})
KINDS = (STATISTICS, HEALTH, STATE, SESSIONS)

_T = TypeVar("_T", bound=msgspec.Struct)


async def load_or_create(
    transaction: Transaction, kind: RecordKind, record_id: str, document_type: type[_T]
) -> tuple[Record, _T]:
    """Return a record and its document. If the document is missing or invalid, return a new one."""
    record = await transaction.get(kind.name, record_id)
    if record is None:
        return Record(kind=kind.name, id=record_id, state=CURRENT), document_type()
    try:
        return record, msgspec.convert(record.doc, document_type)
    except msgspec.ValidationError:
        return record, document_type()


async def save_if_changed(transaction: Transaction, record: Record, document: msgspec.Struct) -> None:
    """Store a document if it changed."""
    known: dict[str, Any] = msgspec.to_builtins(document)
    if record.version == 0 or dict(record.doc) != known:
        await transaction.put(Record(kind=record.kind, id=record.id, version=record.version, state=CURRENT, doc=known))


async def log_internal_event(transaction: Transaction, event: InternalEvent, now: datetime) -> None:
    """Log an internal event of the Chamberlain."""
    await transaction.append(to_log_entry(event, CHAMBERLAIN, now))


async def notify(
    transaction: Transaction,
    text: str,
    *,
    channel: str,
    now: datetime,
    zone: ZoneInfo,
    urgency: Urgency = Urgency.HIGH,
    context: dict[str, Any] | None = None,
    kind: MessageType = MessageType.NOTIFICATION,
) -> None:
    """Queue a message to people. Messages of the Chamberlain are sent in order."""
    await queue_message(
        transaction,
        kind,
        text,
        channel=channel,
        thread=CHAMBERLAIN,
        today=day_of(now, zone),
        context=context,
        urgency=urgency,
    )
