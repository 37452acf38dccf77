-- name: get_record
-- Read one record.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND id = %(id)s;

-- name: insert_record
-- Insert a new record; return nothing if it exists.
INSERT INTO kingdom.record (kind, id, version, state, owner, due_at, doc, ended_at)
VALUES (%(kind)s, %(id)s, 1, %(state)s, %(owner)s, %(due_at)s, %(doc)s::jsonb, CASE WHEN %(final)s THEN clock_timestamp() END)
ON CONFLICT (kind, id) DO NOTHING RETURNING version;

-- name: update_record
-- Update a record if it has the expected version; return nothing if it has another version.
UPDATE kingdom.record
   SET version = version + 1, state = %(state)s, owner = %(owner)s, due_at = %(due_at)s, doc = %(doc)s::jsonb,
       updated_at = clock_timestamp(),
       -- If a final record changes again, it keeps its first ended_at.
       ended_at = CASE WHEN %(final)s THEN coalesce(ended_at, clock_timestamp()) END
 WHERE kind = %(kind)s AND id = %(id)s AND version = %(version)s RETURNING version;

-- fragment: read_records
-- LATERAL makes the planner look up each record in the primary key.
SELECT r.* FROM unnest(%(kinds)s::text[], %(record_ids)s::text[]) AS wanted(kind, id)
 CROSS JOIN LATERAL (SELECT {record_columns} FROM kingdom.record r
                      WHERE r.kind = wanted.kind AND r.id = wanted.id COLLATE "C" LIMIT 1) r

-- name: get_records
-- Read several records.
{read_records};

-- name: find_by_state
-- Find records of one state in the order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record
 WHERE kind = %(kind)s AND state = %(state)s AND (%(owner)s::text IS NULL OR owner = %(owner)s)
   AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_by_owner
-- Find records of one owner in the order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record
 WHERE kind = %(kind)s AND owner = %(owner)s AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_by_kind
-- Find records of one kind in the order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record
 WHERE kind = %(kind)s AND id > %(after)s ORDER BY id LIMIT %(limit)s::int;

-- name: find_due
-- Find due records, the earliest first.
SELECT {record_columns} FROM kingdom.record
 WHERE kind = %(kind)s AND due_at IS NOT NULL AND due_at <= %(due_by)s
   -- CASE instead of OR: the planner estimates few rows for an OR, and would sort all due records.
   AND CASE WHEN %(state)s::text IS NOT NULL THEN state = %(state)s ELSE true END
   AND CASE WHEN %(owner)s::text IS NOT NULL THEN owner = %(owner)s ELSE true END
 ORDER BY due_at, id LIMIT %(limit)s::int;

-- name: once
-- Take a dedup key; return nothing if it is taken and has not expired.
INSERT INTO kingdom.once_key AS taken (scope, key, expires_at)
VALUES (%(scope)s, %(key)s, now() + %(keep)s::interval)
ON CONFLICT (scope, key) DO UPDATE SET expires_at = excluded.expires_at WHERE taken.expires_at < now() RETURNING 1;

-- fragment: append_entries
INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
SELECT at, type, actor, trace_id, aggregate_type, aggregate_id, data
  FROM jsonb_to_recordset(%(entries)s::jsonb) AS x(
    n int, at timestamptz, type text, actor text, trace_id text, aggregate_type text, aggregate_id text, data jsonb)
 ORDER BY n

-- name: append
-- Append entries to the log in their order.
{append_entries};

-- name: read_log
-- Read the log after a cursor. No entry is missed, and none is returned twice: an entry is returned only when all
-- transactions with lower numbers have ended, so no entry can appear below a cursor later.
SELECT l.xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log l
 WHERE (l.xid, l.seq) > (%(xid)s::text::xid8, %(seq)s::bigint) AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
 -- l.xid is the number. A bare xid would be the text column of the result, where '10' comes before '9'.
 ORDER BY l.xid, l.seq LIMIT %(limit)s::int;

-- name: read_log_about
-- Read the log about one aggregate after a cursor, with the guarantee of read_log.
SELECT l.xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log l
 -- `<> ''` repeats the condition of the partial index, so that the planner can use it.
 WHERE l.aggregate_id = %(about)s AND l.aggregate_id <> '' AND (l.xid, l.seq) > (%(xid)s::text::xid8, %(seq)s::bigint)
   AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY l.xid, l.seq LIMIT %(limit)s::int;

-- name: log_end
-- Return the cursor of the last entry that read_log can return now.
SELECT coalesce(max(last.xid), '0') AS xid, coalesce(max(last.seq), 0) AS seq
  FROM (SELECT l.xid::text AS xid, l.seq FROM kingdom.log l WHERE l.xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY l.xid DESC, l.seq DESC LIMIT 1) last;
