"""Convert between objects of the bus and rows of the database. This module does no I/O.

An EventCopy is an event as it is published to one stream. COPY is the SQL command that inserts many rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.port import EventCopy, Put
from kingdom.bus.record import Record, RecordKind
from kingdom.errors import MalformedEvent

# The hint that the courier has events to send. No worker waits for a stream of this name.
COURIER_HINT = "courier/"
# Transports limit the size of a message, by default to a million bytes with its headers.
CARRIED_BYTES_MAX = 900_000
_encode = msgspec.json.Encoder().encode
_COPY_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def row_of_copy(number: int, copy: EventCopy) -> dict[str, Any]:
    """Return an EventCopy as a row of the publish statements. `number` identifies it in their results."""
    envelope = copy.envelope
    return {
        "n": number,
        "event_id": envelope.event_id,
        "stream": copy.stream.name,
        "event_type": envelope.type,
        "schema_version": envelope.schema_version,
        "occurred_at": envelope.occurred_at,
        "trace_id": envelope.trace_id,
        "owner_id": envelope.owner_id,
        "partition_key": envelope.partition_key,
        "aggregate_type": envelope.aggregate_type,
        "aggregate_id": envelope.aggregate_id,
        "attributes": envelope.attributes,
        "payload_json": envelope.payload,
        "max_attempts": copy.stream.retry.max_attempts,
        "not_before": copy.at,
        "event_id_given": envelope.event_id_given,
    }


def rows_of_copies(copies: Sequence[EventCopy]) -> str:
    """Return EventCopies as the JSON parameter of a publish statement for many events."""
    return to_json([row_of_copy(number, copy) for number, copy in enumerate(copies)])


def is_carried(copy: EventCopy) -> bool:
    """Return whether a courier takes an EventCopy to the transport of its stream."""
    return copy.stream.transport is not None


def hint_of(copy: EventCopy) -> str:
    """Return the hint that wakes whatever takes an EventCopy next."""
    return COURIER_HINT if is_carried(copy) else copy.stream.name


def carried_value(copy: EventCopy) -> str:
    """Return the envelope of an EventCopy as its transport carries it. Refuse what is too large."""
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


def may_need_cleanup(copy: EventCopy) -> bool:
    """Return whether the insert of a duplicate may need cleanup in the same transaction.

    An ordered duplicate may have created a row for its key. A duplicate with a given id may have been inserted although
    its event is in the archive.
    """
    return is_ordered(copy) or copy.envelope.event_id_given


def is_plain(copy: EventCopy) -> bool:
    """Return whether an EventCopy needs nothing but an insert: a new id, no order, delay or transport."""
    return copy.at is None and not may_need_cleanup(copy) and not is_carried(copy)


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


def event_table_line(copy: EventCopy) -> str:
    """Return a plain EventCopy as a line of text for COPY into the event table, with the columns of `copy_fresh`."""
    envelope = copy.envelope
    texts = (
        copy.stream.name,
        envelope.type,
        envelope.trace_id,
        envelope.owner_id,
        envelope.aggregate_type,
        envelope.aggregate_id,
        to_json(envelope.attributes) if envelope.attributes else "{}",
        to_json(envelope.payload),
    )
    line = "\t".join(texts)
    if "\\" in line or line.count("\t") >= len(texts) or "\n" in line or "\r" in line:
        line = "\t".join(text.translate(_COPY_ESCAPES) for text in texts)
    key = "\\N" if envelope.partition_key is None else envelope.partition_key.translate(_COPY_ESCAPES)
    numbers = f"{envelope.schema_version}\t{copy.stream.retry.max_attempts}"
    # PostgreSQL also reads a UUID without hyphens, which are expensive to add.
    return f"{envelope.event_id.int:032x}\t{envelope.occurred_at.isoformat()}\t{numbers}\t{key}\t{line}\n"


def staging_table_row(number: int, copy: EventCopy) -> tuple[Any, ...]:
    """Return an EventCopy as a row for COPY into the staging table, from which a statement publishes it."""
    row = row_of_copy(number, copy)
    row["attributes"], row["payload_json"] = to_json(row["attributes"]), to_json(row["payload_json"])
    return tuple(row.values())


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


def read_deliveries(stream: str, rows: Sequence[dict[str, Any]]) -> list[Delivery]:
    """Return claimed rows as deliveries in the order of their positions.

    In an ordered stream, `Delivery.run` lists the positions of all these deliveries that have the same key.
    """
    deliveries = [
        Delivery(
            stream=stream,
            position=row["id"],
            token=row["lease_token"],
            envelope=read_envelope(row, stream),
            attempt=row["attempt_count"],
            max_attempts=row["max_attempts"],
            crash_count=row["crash_count"],
            ordered=row["ordered"],
            published_at=row["created_at"],
            cancelled=row["cancel_requested"],
        )
        for row in sorted(rows, key=lambda row: row["id"])
    ]
    if not deliveries or not any(delivery.ordered for delivery in deliveries):
        return deliveries
    positions_of: dict[tuple[str, str], list[int]] = {}
    for delivery in deliveries:
        if delivery.ordering_key:
            positions_of.setdefault(delivery.ordering_key, []).append(delivery.position)
    tuples = {key: tuple(positions) for key, positions in positions_of.items()}
    return [msgspec.structs.replace(d, run=tuples[d.ordering_key]) if d.ordering_key else d for d in deliveries]
