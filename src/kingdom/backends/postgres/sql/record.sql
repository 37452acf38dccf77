-- name: get_record
SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record WHERE kind = %(kind)s AND id = %(id)s;

-- name: insert_record
INSERT INTO kingdom.record (kind, id, version, state, owner, due_at, doc, ended_at)
VALUES (%(kind)s, %(id)s, 1, %(state)s, %(owner)s, %(due_at)s, %(doc)s::jsonb, CASE WHEN %(final)s THEN clock_timestamp() END)
ON CONFLICT (kind, id) DO NOTHING RETURNING version;

-- name: update_record
UPDATE kingdom.record
   SET version = version + 1, state = %(state)s, owner = %(owner)s, due_at = %(due_at)s, doc = %(doc)s::jsonb,
       updated_at = clock_timestamp(),
       ended_at = CASE WHEN %(final)s THEN coalesce(ended_at, clock_timestamp()) END
 WHERE kind = %(kind)s AND id = %(id)s AND version = %(version)s RETURNING version;

-- name: get_records
SELECT r.* FROM unnest(%(kinds)s::text[], %(ids)s::text[]) AS w(kind, id)
 CROSS JOIN LATERAL (SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record r
                      WHERE r.kind = w.kind AND r.id = w.id COLLATE "C" LIMIT 1) r;

-- name: insert_records
INSERT INTO kingdom.record (kind, id, version, state, owner, due_at, doc, ended_at)
SELECT kind, id, 1, state, owner, due_at, doc, CASE WHEN final THEN clock_timestamp() END
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    kind text, id text, state text, owner text, due_at timestamptz, doc jsonb, final boolean)
 ORDER BY kind, id COLLATE "C"
ON CONFLICT (kind, id) DO NOTHING RETURNING kind, id;

-- name: update_records
-- Rows are locked in one order first; LATERAL keeps it a walk along the primary key.
WITH w AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    kind text, id text, version bigint, state text, owner text, due_at timestamptz, doc jsonb, final boolean)
   ORDER BY kind, id COLLATE "C"),
l AS MATERIALIZED (
  SELECT w.*, r.place FROM w CROSS JOIN LATERAL (
    SELECT r.ctid AS place FROM kingdom.record r
     WHERE r.kind = w.kind AND r.id = w.id COLLATE "C" AND r.version = w.version FOR UPDATE) r)
UPDATE kingdom.record r
   SET version = r.version + 1, state = l.state, owner = l.owner, due_at = l.due_at, doc = l.doc,
       updated_at = clock_timestamp(),
       ended_at = CASE WHEN l.final THEN coalesce(r.ended_at, clock_timestamp()) END
  FROM l WHERE r.ctid = l.place RETURNING r.kind, r.id;

-- name: find_by_state
SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record
 WHERE kind = %(kind)s AND state = %(state)s AND (%(owner)s::text IS NULL OR owner = %(owner)s)
   AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_by_owner
SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record
 WHERE kind = %(kind)s AND owner = %(owner)s AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_by_kind
SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record
 WHERE kind = %(kind)s AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_due
-- CASE, not OR: the planner takes an OR for rare, and would rather sort everything that is due than walk the index.
SELECT kind, id, version, state, owner, due_at, doc FROM kingdom.record
 WHERE kind = %(kind)s AND due_at IS NOT NULL AND due_at <= %(due_by)s
   AND CASE WHEN %(state)s::text IS NOT NULL THEN state = %(state)s ELSE true END
   AND CASE WHEN %(owner)s::text IS NOT NULL THEN owner = %(owner)s ELSE true END
 ORDER BY due_at, id LIMIT %(limit)s::int;

-- name: once
INSERT INTO kingdom.once_key AS o (scope, key, expires_at) VALUES (%(scope)s, %(key)s, now() + %(keep)s::interval)
ON CONFLICT (scope, key) DO UPDATE SET expires_at = excluded.expires_at WHERE o.expires_at < now() RETURNING 1;

-- name: append
INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
SELECT at, type, actor, trace_id, aggregate_type, aggregate_id, data
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    n int, at timestamptz, type text, actor text, trace_id text, aggregate_type text, aggregate_id text, data jsonb)
 ORDER BY n;

-- name: read_log
-- Nothing of a transaction that could still commit below the cursor is shown: no gap, no double.
-- The order names the table's column: a bare xid would be the text, and '10' comes before '9'.
SELECT l.xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log l
 WHERE (l.xid, l.seq) > (%(xid)s::text::xid8, %(seq)s::bigint) AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY l.xid, l.seq LIMIT %(limit)s::int;

-- name: read_log_about
-- The index leaves out what is about nothing, so the planner must be told that this is about something.
SELECT l.xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log l
 WHERE l.aggregate_id = %(about)s AND l.aggregate_id <> '' AND (l.xid, l.seq) > (%(xid)s::text::xid8, %(seq)s::bigint)
   AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY l.xid, l.seq LIMIT %(limit)s::int;

-- name: log_end
SELECT coalesce(max(e.xid), '0') AS xid, coalesce(max(e.seq), 0) AS seq
  FROM (SELECT l.xid::text AS xid, l.seq FROM kingdom.log l WHERE l.xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY l.xid DESC, l.seq DESC LIMIT 1) e;
