"""What the Sentinel stores, and how a GitHub activity becomes an event exactly once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.records import CURRENT, ENDED, SEEN, SEEN_KEPT, receive_event
from kingdom.court.sentinel.deduplication import SubjectHistory, record_activity
from kingdom.court.sentinel.filters import FilterReason
from kingdom.court.sentinel.github_activity import GitHubActivity
from kingdom.errors import Conflict, KingdomError, Transient, describe_error
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

ACTOR = "sentinel"
_ENDED_RETENTION = timedelta(days=1)
_ENDED_AT_ONCE = 200
CURSORS = RecordKind(name="cursor", directories={CURRENT: "state/sentinel/cursors"})
SUBJECT_HISTORIES = RecordKind(
    name="place",
    directories={CURRENT: "state/sentinel/places", ENDED: "state/sentinel/places/ended"},
    final=frozenset({ENDED}),
    retention=_ENDED_RETENTION,
)
TICKETS = RecordKind(
    name="ticket",
    directories={CURRENT: "state/sentinel/tickets", ENDED: "state/sentinel/tickets/ended"},
    final=frozenset({ENDED}),
    retention=_ENDED_RETENTION,
)
KINDS = (CURSORS, SUBJECT_HISTORIES, TICKETS)
_log = structlog.get_logger("kingdom.court.sentinel")


class PollCursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a source was read. `etag` and `last_modified` are from the reply to the request since `asked_since`."""

    since: datetime
    polled_at: datetime
    asked_since: datetime | None = None
    answered_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""


class KnownTicket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ticket as it was last read. Changes until `known_until` are not new."""

    key: str
    status: str
    known_until: datetime


class IntakeResult(StrEnum):
    """Whether an activity became an event, was seen before, or was dropped."""

    RECEIVED = "received"
    SEEN = "seen"
    DROPPED = "dropped"


_Item = TypeVar("_Item")
_Taken = TypeVar("_Taken")
_Remembered = TypeVar("_Remembered", PollCursor, SubjectHistory, KnownTicket)
_KIND_OF: dict[type, RecordKind] = {PollCursor: CURSORS, SubjectHistory: SUBJECT_HISTORIES, KnownTicket: TICKETS}
# How long after the last activity a record is kept. By default, the dedup keys of GitHub are kept as long.
_KEPT_FOR: dict[type, timedelta] = {SubjectHistory: SEEN_KEPT, KnownTicket: timedelta(days=365)}


async def load_state(
    transaction: Transaction, kind: type[_Remembered], record_id: str
) -> tuple[Record | None, _Remembered | None]:
    """Return a record and its content. Each is None if it does not exist; invalid content counts as missing."""
    record = await transaction.get(_KIND_OF[kind].name, record_id)
    try:
        return record, msgspec.convert(record.doc, kind) if record and record.state == CURRENT else None
    except msgspec.ValidationError:
        return record, None


async def save_state(transaction: Transaction, record_id: str, thing: _Remembered, record: Record | None) -> None:
    """Store a cursor, a history or a ticket under an id."""
    keep = _KEPT_FOR.get(type(thing))
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


async def end_old_records(bus: Bus, now: datetime) -> int:
    """End the histories and tickets that had no activity for a long time. Return their number."""

    async def act(transaction: Transaction) -> int:
        ended = 0
        for kind in (SUBJECT_HISTORIES, TICKETS):
            query = RecordQuery(kind=kind.name, state=CURRENT, due_by=now, limit=_ENDED_AT_ONCE)
            for record in await transaction.find(query):
                await transaction.put(record.replace(state=ENDED, due_at=None))
                ended += 1
        return ended

    return await run_transaction(bus, act)


async def accept_each(
    bus: Bus,
    items: Mapping[str, _Item],
    accept: Callable[[Transaction, _Item], Awaitable[_Taken]],
    move_cursor: Callable[[Transaction, Sequence[_Item]], Awaitable[None]],
) -> list[_Taken]:
    """Accept the items of a poll and move its cursor, all in one transaction, and return what became of each item.

    The items are accepted in the order of their ids, so that concurrent polls lock their keys in the same order. If
    the transaction fails although the store is available, one item may be the cause: then each item is accepted alone,
    and those that fail are left out and passed to `move_cursor`, so that a later poll finds them again.
    """
    ordered = sorted(items)

    async def act(transaction: Transaction) -> list[_Taken]:
        taken = [await accept(transaction, items[item_id]) for item_id in ordered]
        await move_cursor(transaction, ())
        return taken

    try:
        return await run_transaction(bus, act)
    except Exception as error:
        if _is_outage(error):
            raise
        log_failure(_log, "cannot store a poll at once, storing its items one by one", error)
    taken, failed = [], []
    for item_id in ordered:
        item = items[item_id]
        try:
            taken.append(await run_transaction(bus, partial(_call_with, accept, item)))
        except Exception as error:
            if _is_outage(error):
                raise
            failed.append(item)
            trace = None if isinstance(error, KingdomError) else error
            text = describe_error(error)
            _log.error("cannot store an event, trying again at the next poll", item=item_id, error=text, exc_info=trace)
    await run_transaction(bus, partial(_call_with, move_cursor, failed))
    return taken


def _is_outage(error: Exception) -> bool:
    return isinstance(error, Transient) and not isinstance(error, Conflict)


def _call_with(
    function: Callable[[Transaction, _Item], Awaitable[_Taken]], item: _Item, transaction: Transaction
) -> Awaitable[_Taken]:
    return function(transaction, item)


async def accept_activity(
    transaction: Transaction,
    activity: GitHubActivity,
    filter_reason: FilterReason | None,
    seen_kept: timedelta = SEEN_KEPT,
) -> IntakeResult:
    """Create an event from a new activity. A filtered activity is only stored, so a second report is recognized."""
    if filter_reason is FilterReason.ELSEWHERE:
        return IntakeResult.DROPPED
    record, known = await load_state(transaction, SubjectHistory, activity.subject)
    if known is None and not activity.concerns_us and filter_reason is not FilterReason.OWN:
        return IntakeResult.DROPPED
    before = known or SubjectHistory(subject=activity.subject)
    history, is_news = record_activity(
        before, activity, refused=filter_reason is not None, unwanted=filter_reason is FilterReason.UNWANTED
    )
    if history is not before:
        await save_state(transaction, activity.subject, history, record)
    if filter_reason:
        return IntakeResult.DROPPED
    if is_news and await receive_event(transaction, activity.event, ACTOR, seen_kept):
        return IntakeResult.RECEIVED
    if not is_news:
        await transaction.once(SEEN, activity.event.id, seen_kept)
    return IntakeResult.SEEN
