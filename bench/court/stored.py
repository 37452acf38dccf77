"""Fill a store with ended events: copies of one real event with all its records."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import LiteralString, TypeVar
from uuid import uuid4

import msgspec

from bench.fill import Connection
from kingdom.bootstrap import transfer_of
from kingdom.bus.port import Bus
from kingdom.court.king.release import BILLS
from kingdom.court.king.waiting_queue import NEWEST
from kingdom.court.king.waiting_queue import WAITING_ENTRIES as WAITING_PLACES
from kingdom.court.records import ASSIGNMENTS, EVENTS, MESSAGES, RESULTS
from kingdom.court.sentinel.records import SUBJECT_HISTORIES
from kingdom.storage.transfer import AnyItem, DedupKeyItem, EventItem, ItemCounter, LogEntryItem, Manifest, RecordItem

# The kinds of records that each event has. Records of other kinds exist once.
_EVENT_KINDS = [
    kind.name for kind in (EVENTS, ASSIGNMENTS, MESSAGES, RESULTS, WAITING_PLACES, NEWEST, BILLS, SUBJECT_HISTORIES)
]
_T = TypeVar("_T")

# The ids of the copies look like real ids, and sort before the ids of events that the bench adds later.
_COPIES: LiteralString = """
CREATE TEMP TABLE copy AS
SELECT g, e.id AS event, t.id AS task, 'evt-github-hook-4711-' || g || '-review-requested-20200101000000' AS new_event,
       'task-' || day AS new_task, 'msg-' || day AS new_message
  FROM kingdom.record e, kingdom.record t, generate_series(1000001, 1000000 + %s) g,
       LATERAL (SELECT (20000000 + g / 1000) || '-' || lpad((g %% 1000)::text, 3, '0') AS day) d
 WHERE e.kind = 'event' AND t.kind = 'task'
"""
_LOOKUP: LiteralString = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT doc FROM kingdom.record WHERE kind = 'quota' AND id = 'money'
"""
_COUNT: LiteralString = "SELECT count(*) FROM kingdom.record WHERE kind = 'event' AND state = 'completed'"
# Insert one kind after another, in the order of the index.
_RECORDS: LiteralString = """
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, created_at,
  updated_at, ended_at)
SELECT r.kind,
       CASE r.kind WHEN 'event' THEN new_event
                   WHEN 'waiting' THEN lpad(g::text, 14, '0') || '-' || new_event
                   WHEN 'message' THEN new_message || '-' || right(r.id, 3)
                   WHEN 'newest' THEN 'gen-pr-' || md5(g::text)
                   WHEN 'place' THEN 'acme/shop#' || g
                   ELSE replace(r.id, task, new_task) END,
       r.version, r.state, replace(r.owner, task, new_task), r.index_2, r.index_3, r.due_at,
       replace(replace(r.doc::text, event, new_event), task, new_task)::jsonb, r.created_at, r.updated_at, r.ended_at
  FROM copy, (SELECT * FROM kingdom.record WHERE kind = %(kind)s) r
"""
_REST: Sequence[LiteralString] = (
    """
INSERT INTO kingdom.once_key (scope, key, expires_at)
SELECT k.scope, CASE k.scope WHEN 'delivery' THEN 'delivery-' || g ELSE replace(k.key, event, new_event) END,
       k.expires_at
  FROM copy, (SELECT * FROM kingdom.once_key) k
""",
    """
INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
SELECT l.at, l.type, l.actor, l.trace_id, l.aggregate_type,
       replace(replace(l.aggregate_id, event, new_event), task, new_task),
       replace(replace(l.data::text, event, new_event), task, new_task)::jsonb
  FROM copy, (SELECT * FROM kingdom.log) l
""",
    """
INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts,
  crash_count, lease_token, created_at)
SELECT -a.id, gen_random_uuid(), a.stream, a.event_type, a.schema_version, a.occurred_at, a.trace_id, a.owner_id,
  replace(a.partition_key, task, new_task), a.ordered, a.aggregate_type,
  replace(replace(a.aggregate_id, event, new_event), task, new_task), a.attributes,
  replace(replace(a.payload_json::text, event, new_event), task, new_task)::jsonb, a.attempt_count, a.max_attempts,
  a.crash_count, a.lease_token, a.created_at
  FROM copy, (SELECT * FROM kingdom.outbox_archive) a
""",
)


def fill_database(connection: Connection, events: int) -> None:
    """Copy the only event of a database until there are this many, then vacuum and analyze."""
    connection.execute(_COPIES, (events - 1,))
    for kind in _EVENT_KINDS:
        connection.execute(_RECORDS, {"kind": kind})
    for statement in _REST:
        connection.execute(statement)
    connection.execute("DROP TABLE copy")
    connection.execute("VACUUM ANALYZE")
    assert connection.execute(_COUNT).fetchone() == (events,)


def lookup_buffers(connection: Connection) -> int:
    """Return the buffers of one record lookup. Each level of the index adds one."""
    row = connection.execute(_LOOKUP).fetchone()
    plan = row[0][0]["Plan"] if row else {}
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def fill_files(model: Bus, store: Bus, events: int) -> None:
    """Fill an empty file store with the content of the model, and with many copies of the model's only event."""
    async with transfer_of(model).snapshot() as snapshot:
        items = [item async for item in snapshot.items]
        last = snapshot.manifest.last_position
    tally = ItemCounter()
    for item in _all(items, events, last):
        tally.add(item)
    highest = last * (events + 1)
    manifest = Manifest(census=tally.counts, last_position=highest, last_token=highest)
    await transfer_of(store).import_items(_iterate(_all(items, events, last)), manifest)


async def _iterate(items: Iterator[AnyItem]) -> AsyncIterator[AnyItem]:
    for item in items:
        yield item


def _all(items: Sequence[AnyItem], events: int, last: int) -> Iterator[AnyItem]:
    ids = {item.kind: item.id for item in items if isinstance(item, RecordItem)}
    names = [ids[EVENTS.name], ids[ASSIGNMENTS.name]]
    yield from items
    for number in range(1, events):
        for item in items:
            if copy := _copy(item, names, number, last):
                yield copy


def _copy(item: AnyItem, names: Sequence[str], number: int, last: int) -> AnyItem | None:
    match item:
        case RecordItem():
            if item.kind not in _EVENT_KINDS:
                return None
            return msgspec.structs.replace(_renamed(item, names, number), id=_renamed_id(item.id, names, number))
        case DedupKeyItem():
            return msgspec.structs.replace(item, key=_renamed_id(item.key, names, number))
        case EventItem():
            copy = _renamed(item, names, number)
            envelope = {**copy.envelope, "eventId": str(uuid4())}
            return msgspec.structs.replace(copy, envelope=envelope, position=item.position + number * last)
        case LogEntryItem():
            return _renamed(item, names, number)
    return None


def _renamed_id(text: str, names: Sequence[str], number: int) -> str:
    found = next((name for name in names if name in text), text)
    return text.replace(found, f"{found}-{number}")


def _renamed(thing: _T, names: Sequence[str], number: int) -> _T:
    """Return a copy of an item in which the names have a number at their end."""
    text = msgspec.json.encode(thing).decode()
    for name in names:
        text = text.replace(name, f"{name}-{number}")
    return msgspec.json.decode(text, type=type(thing))
