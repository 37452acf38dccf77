"""The waiting queue: one entry for each General that an event waits for, ordered by priority with aging."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document
from kingdom.court.documents import ExternalEvent, Priority, Route
from kingdom.court.king.admission_rules import rank_of, rank_text
from kingdom.court.king.routing import RouteChoice
from kingdom.court.records import ENDED

WAITING = "waiting"
# The line of an entry says what the entry waits for. A READY entry waits for admission. A HELD entry waits in case a
# newer event replaces it. An ANSWER of a person waits for budget. Further lines are the scopes of full quotas,
# `missing_general_line` and `ROUND_LINE`.
READY = "ready"
HELD = "held"
ANSWER = "answer"
_LINE = "line"
_RETENTION = timedelta(days=1)
# Newer events can hold an entry back again and again, but not longer than this many debounce times.
_HOLDS_MAX = 10
# Event ids do not contain this character.
_GENERAL_SEPARATOR = "@"

WAITING_ENTRIES = RecordKind(
    name="waiting",
    directories={WAITING: "state/king/waiting", ENDED: "state/king/waited"},
    final=frozenset({ENDED}),
    retention=_RETENTION,
    indexes=(_LINE,),
)
# The newest event of each key and General.
NEWEST = RecordKind(
    name="newest",
    directories={WAITING: "state/king/newest", ENDED: "state/king/newest-ended"},
    final=frozenset({ENDED}),
    retention=_RETENTION,
)


class WaitingEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that waits for one General. `reason` says why, or is empty if the line of the entry says enough.

    If the event is a person's answer, `answers` is the id of the assignment to resume.
    """

    event_id: str
    general: str
    rule: str
    priority: Priority
    since: datetime
    repo: str | None = None
    key: str = ""
    reason: str = ""
    answers: str = ""
    # The followup whose next round handles the event.
    followup: str = ""
    # The amount to reserve from the daily budget, or None for the General's usual amount.
    usd: float | None = None

    @property
    def rank(self) -> int:
        """Return the rank of this entry in the queue."""
        return rank_of(self.since, self.priority)


class _NewestEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"entry_id": "place"}):
    """The newest event with a key for a General."""

    general: str
    key: str
    event_id: str
    created_at: datetime
    entry_id: str


class SupersededEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a newer event replaces."""

    record: Record
    entry: WaitingEntry


class QueuedRoute(NamedTuple):
    """The route of an event, the waiting entry that it replaced, and the id of a newer event if there is one, or ""."""

    route: Route
    superseded: SupersededEntry | None
    overtaken_by: str


def read_entry(record: Record) -> WaitingEntry:
    """Return the entry in a record."""
    return read_document(record.doc, WaitingEntry)


def line_of(record: Record) -> str | None:
    """Return the line of an entry, or None if the entry has ended."""
    return record.indexed.get(_LINE)


def line_query(line: str, limit: int = 100) -> RecordQuery:
    """Return the query for the first entries of a line."""
    return RecordQuery(kind=WAITING_ENTRIES.name, index=_LINE, value=line, limit=limit)


async def add_entry(
    transaction: Transaction,
    entry: WaitingEntry,
    line: str,
    *,
    first: bool = True,
    again: bool = False,
    due_at: datetime | None = None,
) -> str:
    """Store a new entry. Return its id, which sorts in queue order.

    `first` is False for a further General of the same event. `again` allows an entry that has ended.
    """
    entry_id = f"{rank_text(entry.rank)}-{entry.event_id}" + ("" if first else f"{_GENERAL_SEPARATOR}{entry.general}")
    ended = await transaction.get(WAITING_ENTRIES.name, entry_id) if again else None
    await transaction.put(
        Record(
            kind=WAITING_ENTRIES.name,
            id=entry_id,
            version=ended.version if ended else 0,
            state=WAITING,
            indexed={_LINE: line},
            due_at=due_at,
            doc=msgspec.to_builtins(entry),
        )
    )
    return entry_id


async def move_entry(transaction: Transaction, record: Record, line: str, reason: str = "") -> None:
    """Move an entry to another line, for a reason that people can read."""
    doc = msgspec.to_builtins(msgspec.structs.replace(read_entry(record), reason=reason))
    await transaction.put(record.replace(indexed={_LINE: line}, due_at=None, doc=doc))


async def end_entry(transaction: Transaction, record: Record) -> None:
    """Remove an entry from the queue."""
    await transaction.put(record.replace(state=ENDED, indexed={}, due_at=None))
    entry = read_entry(record)
    known = await transaction.get(NEWEST.name, _newest_id(entry.general, entry.key)) if entry.key else None
    if known and known.state == WAITING and known.doc["place"] == record.id:
        await transaction.put(known.replace(state=ENDED))


async def enqueue(
    transaction: Transaction, event: ExternalEvent, choice: RouteChoice, repo: str | None, now: datetime, *, first: bool
) -> QueuedRoute:
    """Queue an event for a General, unless it has a newer event with the same key."""
    route = Route(general=choice.general, rule=choice.rule)
    # If the sender's clock is ahead, its event must not stay the newest forever.
    created_at = min(event.created_at, now)
    known = await transaction.get(NEWEST.name, _newest_id(choice.general, choice.key)) if choice.key else None
    newest = msgspec.convert(known.doc, _NewestEvent) if known else None
    if newest and (newest.created_at, newest.event_id) > (created_at, event.id):
        return QueuedRoute(route, None, newest.event_id)
    older = await _find_waiting(transaction, newest.entry_id) if known and newest and known.state == WAITING else None
    entry = WaitingEntry(
        event_id=event.id,
        general=choice.general,
        rule=choice.rule,
        priority=choice.priority,
        # A new entry keeps the position of the entry that it replaces.
        since=min(created_at, older.entry.since) if older else created_at,
        repo=repo,
        key=choice.key,
    )
    until = _held_until(entry.since, now, choice.debounce_seconds)
    entry_id = await add_entry(transaction, entry, HELD if until else READY, first=first, due_at=until)
    if older:
        await transaction.put(older.record.replace(state=ENDED, indexed={}, due_at=None))
    if choice.key:
        newest = _NewestEvent(
            general=choice.general, key=choice.key, event_id=event.id, created_at=created_at, entry_id=entry_id
        )
        await _remember_newest(transaction, known, newest)
    return QueuedRoute(msgspec.structs.replace(route, waiting=entry_id), older, "")


async def release_held(transaction: Transaction, now: datetime, limit: int) -> int:
    """Make entries ready after their hold time. Return the number of these entries."""
    due = await transaction.find(replace(line_query(HELD, limit), due_by=now))
    for record in due:
        await move_entry(transaction, record, READY)
    return len(due)


async def _find_waiting(transaction: Transaction, entry_id: str) -> SupersededEntry | None:
    record = await transaction.get(WAITING_ENTRIES.name, entry_id)
    if record is None or record.state != WAITING:
        return None
    return SupersededEntry(record=record, entry=read_entry(record))


async def _remember_newest(transaction: Transaction, known: Record | None, newest: _NewestEvent) -> None:
    await transaction.put(
        Record(
            kind=NEWEST.name,
            id=_newest_id(newest.general, newest.key),
            version=known.version if known else 0,
            state=WAITING,
            doc=msgspec.to_builtins(newest),
        )
    )


def _held_until(since: datetime, now: datetime, seconds: int) -> datetime | None:
    """Return until when an entry is held, or None."""
    until = min(now + timedelta(seconds=seconds), since + timedelta(seconds=seconds * _HOLDS_MAX))
    return until if until > now else None


def _newest_id(general: str, key: str) -> str:
    # A key contains untrusted text of any length.
    return f"{general}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
