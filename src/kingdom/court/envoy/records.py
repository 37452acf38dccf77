"""What the Envoy stores: the thread of each assignment, the questions that people see, the date of the last report."""

from datetime import datetime
from typing import TypeVar

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.court.records import CURRENT

ENVOY = "envoy"
ENVOYS = RecordKind(name=ENVOY, directories={CURRENT: "state/envoy"})
THREADS = "thread-mappings"
SHOWN_QUESTIONS = "awaiting-responses"
REPORT = "report-sent"


class MessageThread(msgspec.Struct, frozen=True, kw_only=True):
    """The thread of an assignment. `channel` is the messenger's id of the channel, `asked` its configured name."""

    channel: str
    thread_ts: str
    created_at: datetime
    asked: str = ""

    def is_in(self, channel: str) -> bool:
        """Return whether a channel is the channel of the thread. An empty name counts as this channel."""
        return not channel or channel.removeprefix("#") in (self.channel, self.asked.removeprefix("#"))


class ShownQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that people see and can answer in the messenger."""

    msg_id: str
    channel: str
    message_ts: str
    thread_ts: str
    question: str
    created_at: datetime


_Entry = TypeVar("_Entry", MessageThread, ShownQuestion)
_RECORD_IDS: dict[type, str] = {MessageThread: THREADS, ShownQuestion: SHOWN_QUESTIONS}


async def load_entries(transaction: Transaction, entry_type: type[_Entry]) -> dict[str, _Entry]:
    """Return every thread by its assignment, or every shown question by its question id."""
    _, known = await _load(transaction, entry_type)
    return known


async def save_entry(transaction: Transaction, entry_id: str, entry: _Entry) -> None:
    """Store the thread of an assignment, or a shown question."""
    record, known = await _load(transaction, type(entry))
    await _save(transaction, record, {**known, entry_id: entry})


async def remove_entry(transaction: Transaction, entry_type: type[_Entry], entry_id: str) -> _Entry | None:
    """Remove the thread of an assignment, or a shown question, and return it."""
    record, known = await _load(transaction, entry_type)
    entry = known.pop(entry_id, None)
    if entry is not None:
        await _save(transaction, record, known)
    return entry


async def save_report_date(transaction: Transaction, date: str) -> None:
    """Store the date of the last report that was sent."""
    record = await transaction.get(ENVOYS.name, REPORT)
    await _save(transaction, record or _empty(REPORT), {"date": date})


async def _load(transaction: Transaction, entry_type: type[_Entry]) -> tuple[Record, dict[str, _Entry]]:
    record = await transaction.get(ENVOYS.name, _RECORD_IDS[entry_type])
    if record is None:
        return _empty(_RECORD_IDS[entry_type]), {}
    known = {}
    for entry_id, document in record.doc.items():
        try:
            known[entry_id] = msgspec.convert(document, entry_type)
        except msgspec.ValidationError:
            # A person may have edited the entry so that it is invalid. The others still count.
            continue
    return record, known


async def _save(transaction: Transaction, record: Record, document: object) -> None:
    doc = msgspec.to_builtins(document)
    await transaction.put(Record(kind=ENVOYS.name, id=record.id, version=record.version, state=CURRENT, doc=doc))


def _empty(record_id: str) -> Record:
    return Record(kind=ENVOYS.name, id=record_id, state=CURRENT)
