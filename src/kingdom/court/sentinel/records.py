"""What the Sentinel remembers, and how something that happened on GitHub is taken in once."""

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.records import CURRENT, ENDED, SEEN, SEEN_KEPT, receive
from kingdom.court.sentinel.filters import Refusal
from kingdom.court.sentinel.happening import Happening
from kingdom.court.sentinel.heard import Heard, hear
from kingdom.workflow.records import change

ACTOR = "sentinel"
_FORGOTTEN_KEPT = timedelta(days=1)
_FORGOTTEN_AT_ONCE = 200
CURSORS = RecordKind(name="cursor", directories={CURRENT: "state/sentinel/cursors"})
HEARD_PLACES = RecordKind(
    name="place",
    directories={CURRENT: "state/sentinel/places", ENDED: "state/sentinel/places/ended"},
    final=frozenset({ENDED}),
    retention=_FORGOTTEN_KEPT,
)
TICKETS = RecordKind(
    name="ticket",
    directories={CURRENT: "state/sentinel/tickets", ENDED: "state/sentinel/tickets/ended"},
    final=frozenset({ENDED}),
    retention=_FORGOTTEN_KEPT,
)
KINDS = (CURSORS, HEARD_PLACES, TICKETS)


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a source was read; `asked_since` is the time for which `etag` and `last_modified` were given."""

    since: datetime
    polled_at: datetime
    asked_since: datetime | None = None
    answered_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ticket as it was when we looked last; nothing until `known_until` is news."""

    key: str
    status: str
    known_until: datetime


class Taken(StrEnum):
    """What became of something that happened."""

    RECEIVED = "received"
    SEEN = "seen"
    DROPPED = "dropped"


_Remembered = TypeVar("_Remembered", Cursor, Heard, Ticket)
_KIND_OF: dict[type, RecordKind] = {Cursor: CURSORS, Heard: HEARD_PLACES, Ticket: TICKETS}
# So long after something last happened there; of GitHub nothing is recognised longer than by its dedup keys.
_KEPT: dict[type, timedelta] = {Heard: SEEN_KEPT, Ticket: timedelta(days=365)}


async def recall(
    transaction: Transaction, kind: type[_Remembered], record_id: str
) -> tuple[Record | None, _Remembered | None]:
    """Return what is remembered under an id, if anything; what was spoilt by a person begins anew."""
    record = await transaction.get(_KIND_OF[kind].name, record_id)
    try:
        return record, msgspec.convert(record.doc, kind) if record and record.state == CURRENT else None
    except msgspec.ValidationError:
        return record, None


async def remember(transaction: Transaction, record_id: str, thing: _Remembered, record: Record | None) -> None:
    """Store what is remembered under an id."""
    keep = _KEPT.get(type(thing))
    await transaction.put(
        Record(
            kind=_KIND_OF[type(thing)].name,
            id=record_id,
            version=record.version if record else 0,
            state=CURRENT,
            due_at=utc_now() + keep if keep else None,
            doc=msgspec.to_builtins(thing),
        )
    )


async def forget_old(bus: Bus, now: datetime) -> int:
    """Forget places and tickets where nothing has happened for long; returns how many."""

    async def act(transaction: Transaction) -> int:
        forgotten = 0
        for kind in (HEARD_PLACES, TICKETS):
            query = RecordQuery(kind=kind.name, state=CURRENT, due_by=now, limit=_FORGOTTEN_AT_ONCE)
            for record in await transaction.find(query):
                await transaction.put(replace(record, state=ENDED, due_at=None))
                forgotten += 1
        return forgotten

    return await change(bus, act)


async def take_in(
    transaction: Transaction, happening: Happening, why_not: Refusal | None, seen_kept: timedelta = SEEN_KEPT
) -> Taken:
    """Make an event of a happening that nobody told of before; what becomes none is remembered if it explains one."""
    if why_not is Refusal.ELSEWHERE:
        return Taken.DROPPED
    record, known = await recall(transaction, Heard, happening.place)
    if known is None and not happening.concerns_us and why_not is not Refusal.OWN:
        return Taken.DROPPED
    before = known or Heard(place=happening.place)
    heard, is_news = hear(before, happening, refused=why_not is not None, unwanted=why_not is Refusal.UNWANTED)
    if heard is not before:
        await remember(transaction, happening.place, heard, record)
    if why_not:
        return Taken.DROPPED
    if is_news and await receive(transaction, happening.event, ACTOR, seen_kept):
        return Taken.RECEIVED
    if not is_news:
        await transaction.once(SEEN, happening.event.id, seen_kept)
    return Taken.SEEN
