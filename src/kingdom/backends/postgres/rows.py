"""Convert between objects of the bus and rows of the database. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.port import EventCopy
from kingdom.bus.record import Record

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def copy_row(number: int, copy: EventCopy) -> dict[str, Any]:
    """Return one published copy as a row of the publish statements."""
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


def staged_row(number: int, copy: EventCopy) -> tuple[Any, ...]:
    """Return one published copy as a row for COPY."""
    row = copy_row(number, copy)
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


def read_record(row: dict[str, Any]) -> Record:
    """Return a row of the record table as a Record."""
    return Record(**row)


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
        attributes=row["attributes"],
    )


def read_deliveries(stream: str, rows: Sequence[dict[str, Any]]) -> list[Delivery]:
    """Return claimed rows as deliveries in the order of their positions.

    A delivery of an ordered stream gets its run: the positions of all deliveries with the same key.
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
    runs: dict[tuple[str, str], list[int]] = {}
    for delivery in deliveries:
        if delivery.ordering_key:
            runs.setdefault(delivery.ordering_key, []).append(delivery.position)
    tuples = {key: tuple(positions) for key, positions in runs.items()}
    return [msgspec.structs.replace(d, run=tuples[d.ordering_key]) if d.ordering_key else d for d in deliveries]
