"""Convert between objects of the bus and rows of the database. This module does no I/O.

An EventCopy is an event as it is published to one stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.port import EventCopy, Put
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.stream import Stream
from kingdom.errors import MalformedEvent

# The hint that the courier has events to send. No worker waits for a stream of this name.
COURIER_HINT = "courier/"
# Transports limit the size of a message, by default to a million bytes with its headers.
CARRIED_BYTES_MAX = 900_000
# An entry of an index has at most 2,704 bytes, which the key shares with the name of its stream.
KEY_BYTES_MAX = 2000
_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


class _PublishedRow(msgspec.Struct, omit_defaults=True, gc=False):
    """An EventCopy as a row. The fragment `read_copies` fills in what is left out."""

    event_id: UUID
    occurred_at: datetime
    trace_id: str
    payload_json: Mapping[str, Any]
    stream: str | None = None
    max_attempts: int | None = None
    event_type: str | None = None
    schema_version: int = 1
    owner_id: str = ""
    partition_key: str | None = None
    aggregate_type: str = ""
    aggregate_id: str = ""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    not_before: datetime | None = None
    event_id_given: bool = False


def copies_parameters(copies: Sequence[EventCopy]) -> dict[str, Any]:
    """Return EventCopies as the parameters of a publish statement for many events."""
    if not copies:
        return {"rows": "[]", "stream": None, "event_type": None, "max_attempts": None}
    first = copies[0]
    return {
        "rows": to_json([_row_of_copy(copy, first) for copy in copies]),
        "stream": first.stream.name,
        "event_type": first.envelope.type,
        "max_attempts": first.stream.retry.max_attempts,
    }


def _row_of_copy(copy: EventCopy, first: EventCopy) -> _PublishedRow:
    envelope, shares_stream = copy.envelope, copy.stream is first.stream
    return _PublishedRow(
        envelope.event_id,
        envelope.occurred_at,
        envelope.trace_id,
        envelope.payload,
        None if shares_stream else copy.stream.name,
        None if shares_stream else copy.stream.retry.max_attempts,
        None if envelope.type == first.envelope.type else envelope.type,
        envelope.schema_version,
        envelope.owner_id,
        envelope.partition_key,
        envelope.aggregate_type,
        envelope.aggregate_id,
        envelope.attributes,
        copy.at,
        envelope.event_id_given,
    )


def is_carried(copy: EventCopy) -> bool:
    """Return whether a courier takes an EventCopy to the transport of its stream."""
    return copy.stream.transport is not None


def hint_of(copy: EventCopy) -> str:
    """Return the hint that wakes the workers of an EventCopy, or the courier if it is carried."""
    return COURIER_HINT if is_carried(copy) else copy.stream.name


def refuse_long_key(stream: Stream, envelope: Envelope) -> None:
    """Raise MalformedEvent if the outbox could not take in an event of a transport, because its key is too long."""
    if stream.ordered and envelope.partition_key and len(envelope.partition_key.encode()) > KEY_BYTES_MAX:
        raise MalformedEvent(
            f"{envelope.type}: a partition_key of stream {stream.name} has {KEY_BYTES_MAX} bytes at most: publish a"
            " shorter one, such as a hash"
        )


def carried_value(copy: EventCopy) -> str:
    """Return the envelope of an EventCopy as its transport carries it. Refuse what is too large."""
    refuse_long_key(copy.stream, copy.envelope)
    value = to_json(copy.envelope.to_wire())
    if len(value.encode()) > CARRIED_BYTES_MAX:
        raise MalformedEvent(
            f"{copy.envelope.type}: the transport of stream {copy.stream.name} takes {CARRIED_BYTES_MAX} bytes at most:"
            " store the content elsewhere, and publish a reference"
        )
    return value


def carried_rows(copies: Sequence[EventCopy]) -> str:
    """Return EventCopies as the JSON parameter of the statement that gives them to the courier."""
    return to_json(
        [
            {
                "n": number,
                "stream": copy.stream.name,
                "partition_key": copy.envelope.partition_key,
                "event_id": copy.envelope.event_id,
                "event_type": copy.envelope.type,
                "schema_version": copy.envelope.schema_version,
                "trace_id": copy.envelope.trace_id,
                "not_before": copy.at,
                "value": carried_value(copy),
                "event_id_given": copy.envelope.event_id_given,
            }
            for number, copy in enumerate(copies)
        ]
    )


def is_ordered(copy: EventCopy) -> bool:
    """Return whether the store must keep an EventCopy in order with the other events of its key."""
    return copy.stream.ordered and copy.envelope.partition_key is not None and not is_carried(copy)


def is_plain(copy: EventCopy) -> bool:
    """Return whether an EventCopy is only inserted: the store neither keeps it in order nor gives it to a courier."""
    return not (is_ordered(copy) or is_carried(copy))


def event_parameters(copy: EventCopy) -> dict[str, str | None]:
    """Return an EventCopy as the parameters of the publish statement for a single event, all as texts."""
    envelope = copy.envelope
    return {
        "event_id": f"{envelope.event_id.int:032x}",
        "stream": copy.stream.name,
        "event_type": envelope.type,
        "schema_version": str(envelope.schema_version),
        "occurred_at": envelope.occurred_at.isoformat(),
        "trace_id": envelope.trace_id,
        "owner_id": envelope.owner_id,
        "partition_key": envelope.partition_key,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "attributes": to_json(envelope.attributes) if envelope.attributes else "{}",
        "payload_json": to_json(envelope.payload),
        "max_attempts": str(copy.stream.retry.max_attempts),
        "not_before": copy.at.isoformat() if copy.at else None,
        "event_id_given": "true" if envelope.event_id_given else "false",
    }


def entry_rows(entries: Iterable[LogEntry]) -> str:
    """Return log entries as rows of the append statement."""
    return to_json(
        [
            {
                "n": number,
                "at": entry.at,
                "type": entry.type,
                "actor": entry.actor,
                "trace_id": entry.trace_id,
                "aggregate_type": entry.aggregate_type,
                "aggregate_id": entry.aggregate_id,
                "data": entry.data,
            }
            for number, entry in enumerate(entries)
        ]
    )


def read_record(row: dict[str, Any], kinds: Mapping[str, RecordKind]) -> Record:
    """Return a row of the record table as a Record."""
    values = row.pop("index_1"), row.pop("index_2"), row.pop("index_3")
    kind = kinds.get(row["kind"])
    return Record(**row, indexed=kind.name_values(values) if kind else {})


def without_event(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a record from a row that may also have an event."""
    return {name: value for name, value in row.items() if name not in ("position", "now", "behind")}


def record_parameters(put: Put, kind: RecordKind) -> dict[str, Any]:
    """Return the parameters that write a record, with its document as an object."""
    record = put.record
    index_1, index_2, index_3 = kind.index_values(record.indexed)
    return {
        "kind": record.kind,
        "id": record.id,
        "version": put.expected,
        "state": record.state,
        "index_1": index_1,
        "index_2": index_2,
        "index_3": index_3,
        "due_at": record.due_at,
        "doc": record.doc,
        "final": kind.is_final(record.state, record.doc),
    }


def rows_of_puts(puts: Iterable[Put], kinds: Mapping[str, RecordKind]) -> str:
    """Return puts as the JSON parameter of the statements that store many records. Rows leave out empty values."""
    rows = []
    for number, put in enumerate(puts):
        record, kind = put.record, kinds[put.record.kind]
        row: dict[str, Any] = {
            "n": number,
            "kind": record.kind,
            "id": record.id,
            "version": put.expected,
            "state": record.state,
            "doc": record.doc,
        }
        if record.indexed:
            row["index_1"], row["index_2"], row["index_3"] = kind.index_values(record.indexed)
        if record.due_at:
            row["due_at"] = record.due_at
        if kind.is_final(record.state, record.doc):
            row["final"] = True
        rows.append(row)
    return to_json(rows)


def read_entry(row: dict[str, Any]) -> LoggedEntry:
    """Return a row of the log as an entry with its cursor."""
    cursor = LogCursor(int(row.pop("xid")), row.pop("seq"))
    return LoggedEntry(cursor, LogEntry(**row))


def read_envelope(row: dict[str, Any], stream: str) -> Envelope:
    """Return the envelope columns of a row."""
    return Envelope(
        type=row["event_type"],
        payload=row["payload_json"],
        schema_version=row["schema_version"],
        event_id=row["event_id"],
        occurred_at=row["occurred_at"],
        trace_id=row["trace_id"],
        owner_id=row["owner_id"],
        stream=stream,
        partition_key=row["partition_key"],
        aggregate_type=row["aggregate_type"],
        aggregate_id=row["aggregate_id"],
        attributes=row["attributes"] or {},
    )


def read_deliveries(stream: str, rows: Iterable[tuple[Any, ...]]) -> tuple[list[Delivery], list[datetime]]:
    """Return claimed rows as deliveries in the order of their positions, and their due times.

    The rows have the columns of the fragment `delivery_columns`. In an ordered stream, `Delivery.same_key` lists the
    positions of all these deliveries that have the same key.
    """
    deliveries, due = [], []
    # fmt: off
    for (position, event_id, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, ordered,
         aggregate_type, aggregate_id, attributes, payload, attempt, max_attempts, crash_count, token, cancelled,
         published_at, due_at) in sorted(rows, key=itemgetter(0)):
        # fmt: on
        envelope = Envelope(
            type=event_type,
            payload=payload,
            schema_version=schema_version,
            event_id=event_id,
            occurred_at=occurred_at,
            trace_id=trace_id,
            owner_id=owner_id,
            stream=stream,
            partition_key=partition_key,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            attributes=attributes or {},
        )
        deliveries.append(
            Delivery(
                stream=stream,
                position=position,
                token=token,
                envelope=envelope,
                attempt=attempt,
                max_attempts=max_attempts,
                crash_count=crash_count,
                ordered=ordered,
                published_at=published_at,
                cancelled=cancelled,
            )
        )
        if due_at:
            due.append(due_at)
    return with_same_key(deliveries), due


def with_same_key(deliveries: list[Delivery]) -> list[Delivery]:
    """Return deliveries that list the positions of all deliveries of the same key, in order."""
    positions_of: dict[tuple[str, str], list[int]] = {}
    for delivery in deliveries:
        if delivery.ordered and delivery.ordering_key:
            positions_of.setdefault(delivery.ordering_key, []).append(delivery.position)
    if not positions_of:
        return deliveries
    tuples = {key: tuple(positions) for key, positions in positions_of.items()}
    return [msgspec.structs.replace(d, same_key=tuples[d.ordering_key]) if d.ordering_key else d for d in deliveries]


def search_name(query: RecordQuery, kinds: Mapping[str, RecordKind]) -> str:
    """Return the name of the statement for a query."""
    if query.due_by is not None:
        return "find_due"
    number = _index_number(query, kinds)
    by = "state" if query.state is not None else f"index_{number}" if number else "kind"
    return f"find_by_{by}_descending" if query.descending else f"find_by_{by}"


def search_parameters(query: RecordQuery, kinds: Mapping[str, RecordKind]) -> dict[str, Any]:
    """Return the parameters of the statement for a query."""
    return {
        "kind": query.kind,
        "state": query.state,
        "number": _index_number(query, kinds),
        "value": query.value,
        "due_by": query.due_by,
        "after": _start(query),
        "limit": query.limit,
    }


def many_parameters(queries: Sequence[RecordQuery]) -> dict[str, Any]:
    """Return the parameters of the statement for several queries without an index."""
    return {
        "kinds": [query.kind for query in queries],
        "states": [query.state for query in queries],
        "dues": [query.due_by for query in queries],
        "afters": [_start(query) for query in queries],
        "limits": [query.limit for query in queries],
        "descending": [query.descending for query in queries],
    }


def _index_number(query: RecordQuery, kinds: Mapping[str, RecordKind]) -> int:
    return kinds[query.kind].index_number(query.index) if query.index is not None else 0


def _start(query: RecordQuery) -> str:
    # Every id is between the two defaults.
    return query.after if query.after is not None else "\U0010ffff" if query.descending else ""
