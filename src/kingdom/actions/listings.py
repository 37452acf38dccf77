"""Lists in pages. Reading a page costs the same however many records the store has."""

import base64
import binascii
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_documents
from kingdom.court.general.context import run_id_of_root
from kingdom.errors import MalformedRequest
from kingdom.workflow.model.run.workflow import RUN_PREFIX, Workflow
from kingdom.workflow.records import DELETED, WORKFLOWS

_T = TypeVar("_T")
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
# The length of task-20261115, with which the ids of assignments and petitions begin.
_DAY_LENGTH = len("task-20261115")
_RECORDS_AT_ONCE = 100
_COURT, _OTHER = "/court", "/other"
# The ids of Generals' runs are between these two ids. Ids that Kingdom creates for other runs sort before them.
_COURT_BEGIN, _COURT_END = run_id_of_root("task-"), run_id_of_root("task.")


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records, and the cursor of the next page, or None if this is the last one."""

    records: list[Record]
    next: str | None

    def read(self, kind: type[_T]) -> list[_T]:
        """Return the readable documents of the records."""
        return list(read_documents(self.records, kind))


async def list_records(
    transaction: Transaction,
    kind: RecordKind,
    *,
    state: str | None = None,
    index: str | None = None,
    value: str | None = None,
    after: str | None,
    limit: int,
    descending: bool = False,
) -> RecordPage:
    """Return a page of records in the order of their ids. The cursor is the last id."""
    query = records_query(kind, state=state, after=after, limit=limit, descending=descending)
    found = await transaction.find(replace(query, index=index, value=value))
    return RecordPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


def records_query(
    kind: RecordKind, *, state: str | None = None, after: str | None, limit: int, descending: bool = False
) -> RecordQuery:
    """Return the query of `list_records`. One more record than the limit tells whether another page follows."""
    return RecordQuery(kind=kind.name, state=state, after=after or None, limit=limit + 1, descending=descending)


async def newest_runs(
    transaction: Transaction, states: Collection[str], *, after: str | None, limit: int
) -> RecordPage:
    """Return a page of runs in `states`, the newest first, without deleted runs. Empty `states` mean all states.

    Ids of Generals' runs and ids of other runs are each in the order of time, so both are read from their ends and
    merged by creation time. The page can have fewer runs than `limit` although more follow.
    """
    cursors = _read_cursor(after)
    queries = newest_runs_queries(states, after=after, limit=limit)
    await transaction.find_ahead(list(queries.values()))
    found: list[list[tuple[str, Record]]] = []
    for place, query in queries.items():
        records = await transaction.find(query)
        found.append([(place, each) for each in records if place.endswith(_OTHER) or each.id >= _COURT_BEGIN])
    # The merge takes the records of each list in order, so the last id taken from a list is its cursor.
    merged = list(islice(heapq.merge(*found, key=lambda each: _created_at(each[1]), reverse=True), limit + 1))
    page = merged[:limit]
    following = _write_cursor({**cursors, **{place: each.id for place, each in page}}) if len(merged) > limit else None
    return RecordPage([each for _, each in page if each.state != DELETED], following)


async def newest_days(
    transaction: Transaction,
    kind: RecordKind,
    limit: int,
    *,
    state: str | None = None,
    is_wanted: Callable[[Record], bool] = lambda _: True,
) -> list[Record]:
    """Return the newest assignments or petitions by id, at least `limit` if there are that many.

    Ids of one day may not be in the order of time, so all records of the oldest day that is read are returned.
    """
    found: list[Record] = []
    days = _days_backwards(transaction, kind, state, None, "", lambda record_id: record_id[:_DAY_LENGTH])
    async for day in days:
        found += filter(is_wanted, day)
        if len(found) >= limit:
            break
    return sorted(found, key=lambda record: record.id)


async def newest_runs_of_days(transaction: Transaction, state: str, limit: int) -> list[Record]:
    """Return the newest runs of a state by id, at least `limit` if there are that many."""
    found: list[Record] = []
    ranges: tuple[tuple[str | None, str, Callable[[str], str]], ...] = (
        # Only ids that people chose themselves are in this range.
        (None, _COURT_END, lambda record_id: record_id),
        (_COURT_END, _COURT_BEGIN, lambda record_id: record_id[: len(RUN_PREFIX) + _DAY_LENGTH]),
        # These ids are in the order of time.
        (_COURT_BEGIN, "", lambda record_id: record_id),
    )
    for begin, end, group in ranges:
        read = 0
        async for day in _days_backwards(transaction, WORKFLOWS, state, begin, end, group):
            found += day
            read += len(day)
            if read >= limit:
                break
    return sorted(found, key=lambda record: record.id)


async def _days_backwards(
    transaction: Transaction,
    kind: RecordKind,
    state: str | None,
    begin: str | None,
    end: str,
    group: Callable[[str], str],
) -> AsyncIterator[list[Record]]:
    """Yield the records of each group of ids between `begin` and `end`, the last ids first."""
    day: list[Record] = []
    while True:
        query = RecordQuery(kind=kind.name, state=state, after=begin, limit=_RECORDS_AT_ONCE, descending=True)
        page = await transaction.find(query)
        for record in page:
            if record.id < end:
                break
            if day and group(day[-1].id) != group(record.id):
                yield day
                day = []
            day.append(record)
        if len(page) < _RECORDS_AT_ONCE or page[-1].id < end:
            break
        begin = page[-1].id
    if day:
        yield day


def newest_runs_queries(states: Collection[str], *, after: str | None, limit: int) -> dict[str, RecordQuery]:
    """Return the queries of `newest_runs`, each under the name of its place in the cursor."""
    cursors = _read_cursor(after)
    chosen: list[str | None] = [*sorted(states)] or [None]
    return {
        (place := f"{state or ''}{name}"): RecordQuery(
            kind=WORKFLOWS.name, state=state, after=cursors.get(place, begin), limit=limit + 1, descending=True
        )
        for state in chosen
        for name, begin in ((_COURT, _COURT_END), (_OTHER, _COURT_BEGIN))
    }


def runs_of_general(records: list[Record], general: str) -> list[Workflow]:
    """Return the readable runs of a General, or all if `general` is empty."""
    return [run for run in read_documents(records, Workflow) if general in ("", run.general)]


def _created_at(record: Record) -> datetime:
    try:
        return msgspec.convert(record.doc.get("createdAt"), _Moment)
    except msgspec.ValidationError:
        # An unreadable record is shown last.
        return datetime.min.replace(tzinfo=UTC)


def _write_cursor(cursors: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursors)).decode().rstrip("=")


def _read_cursor(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(decoded, type=dict[str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise MalformedRequest(f"{text!r} is not a cursor: use `next` of the previous page") from error
