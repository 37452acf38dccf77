"""The waiting room: one record for each General that an event waits for, in one order of priority with ageing."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document
from kingdom.court.documents import ExternalEvent, Priority, Route
from kingdom.court.king.gates import rank_of, rank_text
from kingdom.court.king.routing import Choice
from kingdom.court.records import ENDED

WAITING = "waiting"
# Owners of a place: it may be taken now, is held back for a newer event, or waits for money to go on with an answer.
READY = "ready"
HELD = "held"
ANSWER = "answer"
_KEPT = timedelta(days=1)
# Newer events can hold a place back so many times as long as one of them, and no longer.
_HOLDS_MAX = 10
# No id of an event has this character.
_FOR = "@"

PLACES = RecordKind(
    name="waiting",
    directories={WAITING: "state/king/waiting", ENDED: "state/king/waited"},
    final=frozenset({ENDED}),
    retention=_KEPT,
)
# The newest event of each key and General, so that the one before is found at once.
NEWEST = RecordKind(
    name="newest",
    directories={WAITING: "state/king/newest", ENDED: "state/king/newest-ended"},
    final=frozenset({ENDED}),
    retention=_KEPT,
)


class WaitingPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that waits for one General; `reason` tells what it waits for where that is no gate and no slot of all.

    `answers` is the assignment that goes on with it, where it is the answer of a person.
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
    # What it takes of the day's money, where that is not what its General's assignments take.
    usd: float | None = None

    @property
    def rank(self) -> int:
        """Return its place in the order."""
        return rank_of(self.since, self.priority)


class _Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest event about something that a General was told of."""

    general: str
    key: str
    event_id: str
    created_at: datetime
    place: str


class Superseded(msgspec.Struct, frozen=True, kw_only=True):
    """A place that a newer event takes."""

    record: Record
    place: WaitingPlace


def read_place(record: Record) -> WaitingPlace:
    """Return the place that a record holds."""
    return read_document(record.doc, WaitingPlace)


async def put_place(
    transaction: Transaction, place: WaitingPlace, owner: str, *, first: bool = True, due_at: datetime | None = None
) -> str:
    """Store a new place, by id in the order in which it is served; returns its id."""
    place_id = f"{rank_text(place.rank)}-{place.event_id}" + ("" if first else f"{_FOR}{place.general}")
    await transaction.put(
        Record(kind=PLACES.name, id=place_id, state=WAITING, owner=owner, due_at=due_at, doc=msgspec.to_builtins(place))
    )
    return place_id


async def move_place(transaction: Transaction, record: Record, owner: str, reason: str = "") -> None:
    """Put a place under another owner, for a reason that people can read."""
    doc = msgspec.to_builtins(msgspec.structs.replace(read_place(record), reason=reason))
    await transaction.put(replace(record, owner=owner, due_at=None, doc=doc))


async def end_place(transaction: Transaction, record: Record) -> None:
    """Take a place out of the waiting room."""
    await transaction.put(replace(record, state=ENDED, owner=None, due_at=None))
    place = read_place(record)
    known = await transaction.get(NEWEST.name, _newest_id(place.general, place.key)) if place.key else None
    if known and known.state == WAITING and known.doc["place"] == record.id:
        await transaction.put(replace(known, state=ENDED))


async def enter(
    transaction: Transaction, event: ExternalEvent, choice: Choice, repo: str | None, now: datetime, *, first: bool
) -> tuple[Route, Superseded | None, str]:
    """Let an event wait for a General; returns its route, whose place it took, or else the newer event's id."""
    route = Route(general=choice.general, rule=choice.rule)
    # A clock that goes wrong outside must not make an event the newest for ever.
    created_at = min(event.created_at, now)
    known = await transaction.get(NEWEST.name, _newest_id(choice.general, choice.key)) if choice.key else None
    newest = msgspec.convert(known.doc, _Newest) if known else None
    if newest and (newest.created_at, newest.event_id) > (created_at, event.id):
        return route, None, newest.event_id
    older = await _waiting(transaction, newest.place) if known and newest and known.state == WAITING else None
    place = WaitingPlace(
        event_id=event.id,
        general=choice.general,
        rule=choice.rule,
        priority=choice.priority,
        # It takes the place of the one before, so that news about something do not push it back.
        since=min(created_at, older.place.since) if older else created_at,
        repo=repo,
        key=choice.key,
    )
    until = _held_until(place.since, now, choice.debounce_seconds)
    place_id = await put_place(transaction, place, HELD if until else READY, first=first, due_at=until)
    if older:
        await transaction.put(replace(older.record, state=ENDED, owner=None, due_at=None))
    if choice.key:
        newest = _Newest(
            general=choice.general, key=choice.key, event_id=event.id, created_at=created_at, place=place_id
        )
        await _remember_newest(transaction, known, newest)
    return msgspec.structs.replace(route, waiting=place_id), older, ""


async def free_held(transaction: Transaction, now: datetime, limit: int) -> int:
    """Let those go on that were held back long enough; returns how many."""
    due = await transaction.find(RecordQuery(kind=PLACES.name, owner=HELD, due_by=now, limit=limit))
    for record in due:
        await move_place(transaction, record, READY)
    return len(due)


async def _waiting(transaction: Transaction, place_id: str) -> Superseded | None:
    record = await transaction.get(PLACES.name, place_id)
    if record is None or record.state != WAITING:
        return None
    return Superseded(record=record, place=read_place(record))


async def _remember_newest(transaction: Transaction, known: Record | None, newest: _Newest) -> None:
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
    """Return until when a place is held back, if at all."""
    until = min(now + timedelta(seconds=seconds), since + timedelta(seconds=seconds * _HOLDS_MAX))
    return until if until > now else None


def _newest_id(general: str, key: str) -> str:
    # A key is made of untrusted text of any length.
    return f"{general}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
