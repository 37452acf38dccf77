"""Fill the tables of a bus with millions of rows, as publishing and handling would leave them."""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

# Positions, event ids and due times increase together, one event per millisecond, all in the past.
_EVENTS: LiteralString = """
INSERT INTO kingdom.outbox_event (event_id, stream, event_type, occurred_at, trace_id, owner_id, partition_key, ordered,
  aggregate_type, aggregate_id, attributes, payload_json, next_retry_at, created_at)
SELECT {event_id}, {stream}, 'Measured', at, md5(g::text), 'bench', {key}, {key} IS NOT NULL,
  'Order', 'order-' || g, '{{"market": "KR"}}', jsonb_build_object('number', g, 'text', repeat('x', 160)), {due}, at
  FROM (SELECT g, now() - ({rows} + 10000 - g) * interval '1 ms' AS at FROM generate_series(1, {rows}) g) s
"""
_ARCHIVE: LiteralString = """
INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts,
  crash_count, lease_token, created_at, event_id_given)
SELECT -g, {event_id}, 'stream-0', 'Measured', 1, now(), md5(g::text), 'bench', NULL, false, 'Order', 'order-' || g,
  '{{"market": "KR"}}', jsonb_build_object('number', g, 'text', repeat('x', 160)), 1, 10, 0, 0, now(), {given}
  FROM generate_series(1, {rows}) g
"""
_EVENT_ID: LiteralString = """
(lpad(to_hex({first} + g), 12, '0') || '7' || substr(md5(g::text), 1, 3) || '8' || substr(md5(g::text), 4, 15))::uuid
"""
_KEYS: LiteralString = """
INSERT INTO kingdom.outbox_key (stream, partition_key)
SELECT DISTINCT stream, partition_key FROM kingdom.outbox_event WHERE ordered ON CONFLICT DO NOTHING
"""


def fill_events(
    connection: Connection,
    rows: int,
    *,
    stream: LiteralString = "'stream-0'",
    key: LiteralString = "NULL::text",
    due: LiteralString = "at",
) -> None:
    """Add pending events. Stream, key and due time are SQL over the row number `g`, its time `at` and `{rows}`."""
    count = sql.Literal(rows)
    parts = {name: sql.SQL(text).format(rows=count) for name, text in (("stream", stream), ("key", key), ("due", due))}
    event_id = sql.SQL(_EVENT_ID).format(first=sql.Literal(1_700_000_000_000))
    connection.execute(sql.SQL(_EVENTS).format(rows=count, event_id=event_id, **parts))
    connection.execute(_KEYS)
    vacuum(connection)


def fill_archive(connection: Connection, rows: int, *, given: bool = False) -> None:
    """Add ended events, with generated ids or with random ids that publishers chose."""
    own = sql.SQL(_EVENT_ID).format(first=sql.Literal(1_600_000_000_000))
    event_id = sql.SQL("gen_random_uuid()") if given else own
    parts = {"rows": sql.Literal(rows), "event_id": event_id, "given": sql.Literal(given)}
    connection.execute(sql.SQL(_ARCHIVE).format(**parts))
    connection.execute("ANALYZE kingdom.outbox_archive")


def vacuum(connection: Connection) -> None:
    """Vacuum and analyze, as autovacuum does over time."""
    connection.execute("VACUUM ANALYZE kingdom.outbox_event")
    connection.execute("VACUUM ANALYZE kingdom.outbox_key")
