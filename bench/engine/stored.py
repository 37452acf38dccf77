"""Fill a store with thousands of finished runs: copies of real runs with all their records."""

from typing import LiteralString

from bench.fill import Connection

_MODELS: LiteralString = """
CREATE TEMP TABLE model AS
SELECT id, row_number() OVER (ORDER BY id) - 1 AS number, count(*) OVER () AS models FROM kingdom.record
 WHERE kind = 'workflow' AND state = 'COMPLETED'
"""
# The ids sort before those of future runs, like the ids of older runs.
_COPIES: LiteralString = """
CREATE TEMP TABLE copy AS
SELECT m.id AS old, 'wf-0' || lpad(g::text, 13, '0') AS new FROM model m, generate_series(1, %s - m.models) g
 WHERE g %% m.models = m.number
"""
_RECORDS: LiteralString = """
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, created_at,
  updated_at, ended_at)
SELECT r.kind, replace(r.id, c.old, c.new), r.version, r.state, replace(r.owner, c.old, c.new), r.index_2, r.index_3,
       r.due_at, replace(r.doc::text, c.old, c.new)::jsonb, r.created_at, r.updated_at, r.ended_at
  FROM (SELECT m.id AS run, r.* FROM model m, kingdom.record r WHERE starts_with(r.id, m.id)) r
  JOIN copy c ON c.old = r.run
"""
_LOG: LiteralString = """
INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
SELECT l.at, l.type, l.actor, l.trace_id, l.aggregate_type, c.new, replace(l.data::text, c.old, c.new)::jsonb
  FROM kingdom.log l JOIN copy c ON c.old = l.aggregate_id
"""
_ARCHIVE: LiteralString = """
INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts,
  crash_count, lease_token, created_at)
SELECT -a.id, gen_random_uuid(), a.stream, a.event_type, a.schema_version, a.occurred_at, a.trace_id, a.owner_id,
  c.new, a.ordered, a.aggregate_type, c.new, a.attributes, replace(a.payload_json::text, c.old, c.new)::jsonb,
  a.attempt_count, a.max_attempts, a.crash_count, a.lease_token, a.created_at
  FROM kingdom.outbox_archive a JOIN copy c ON c.old = a.aggregate_id
"""


def fill_with_finished_runs(connection: Connection, runs: int) -> None:
    """Copy the finished runs of a store until there are this many, then vacuum and analyze."""
    connection.execute(_MODELS)
    connection.execute(_COPIES, (runs,))
    for statement in (_RECORDS, _LOG, _ARCHIVE):
        connection.execute(statement)
    connection.execute("DROP TABLE model, copy")
    connection.execute("VACUUM ANALYZE")
