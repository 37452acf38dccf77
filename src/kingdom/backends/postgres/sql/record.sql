-- name: get_record
-- Read one record.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND id = %(id)s;

-- name: insert_record
-- Insert a new record; return nothing if it exists.
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at)
VALUES (%(kind)s, %(id)s, 1, %(state)s, %(index_1)s, %(index_2)s, %(index_3)s, %(due_at)s, %(doc)s::jsonb,
        CASE WHEN %(final)s THEN clock_timestamp() END)
ON CONFLICT (kind, id) DO NOTHING RETURNING version;

-- name: update_record
-- Update a record if it has the expected version; return nothing if it has another version.
UPDATE kingdom.record
   SET version = version + 1, state = %(state)s, owner = %(index_1)s, index_2 = %(index_2)s, index_3 = %(index_3)s,
       due_at = %(due_at)s, doc = %(doc)s::jsonb, updated_at = clock_timestamp(),
       -- If a final record changes again, it keeps its first ended_at.
       ended_at = CASE WHEN %(final)s THEN coalesce(ended_at, clock_timestamp()) END
 WHERE kind = %(kind)s AND id = %(id)s AND version = %(version)s RETURNING version;

-- name: get_records
-- Read several records. LATERAL makes the planner look up each record in the primary key.
SELECT r.* FROM unnest(%(kinds)s::text[], %(ids)s::text[]) AS wanted(kind, id)
 CROSS JOIN LATERAL (SELECT {record_columns} FROM kingdom.record r
                      WHERE r.kind = wanted.kind AND r.id = wanted.id COLLATE "C" LIMIT 1) r;

-- name: insert_records
-- Insert the records that do not exist yet, and return them. The sorted order prevents deadlocks.
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at)
SELECT kind, id, 1, state, index_1, index_2, index_3, due_at, doc, CASE WHEN final THEN clock_timestamp() END
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    kind text, id text, state text, index_1 text, index_2 text, index_3 text, due_at timestamptz, doc jsonb,
    final boolean)
 ORDER BY kind, id COLLATE "C"
ON CONFLICT (kind, id) DO NOTHING RETURNING kind, id;

-- name: update_records
-- Update the records that have the expected version, and return them. They are locked in a sorted order, which prevents
-- deadlocks.
WITH changes AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    kind text, id text, version bigint, state text, index_1 text, index_2 text, index_3 text, due_at timestamptz,
    doc jsonb, final boolean)
   ORDER BY kind, id COLLATE "C"),
-- LATERAL makes the planner look up each record in the primary key.
locked AS MATERIALIZED (
  SELECT changes.*, r.place FROM changes CROSS JOIN LATERAL (
    SELECT r.ctid AS place FROM kingdom.record r
     WHERE r.kind = changes.kind AND r.id = changes.id COLLATE "C" AND r.version = changes.version FOR UPDATE) r)
UPDATE kingdom.record r
   SET version = r.version + 1, state = locked.state, owner = locked.index_1, index_2 = locked.index_2, index_3 = locked.index_3,
       due_at = locked.due_at, doc = locked.doc, updated_at = clock_timestamp(),
       ended_at = CASE WHEN locked.final THEN coalesce(r.ended_at, clock_timestamp()) END
  FROM locked WHERE r.ctid = locked.place RETURNING r.kind, r.id;

-- name: find_by_state
-- Find records of one state in the ascending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND state = %(state)s AND {has_value} AND {page_up};

-- name: find_by_state_descending
-- Find records of one state in the descending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND state = %(state)s AND {has_value} AND {page_down};

-- name: find_by_index_1
-- Find records with a value in index 1 in the ascending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND owner = %(value)s AND {page_up};

-- name: find_by_index_1_descending
-- Find records with a value in index 1 in the descending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND owner = %(value)s AND {page_down};

-- name: find_by_index_2
-- Find records with a value in index 2 in the ascending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND index_2 = %(value)s AND {page_up};

-- name: find_by_index_2_descending
-- Find records with a value in index 2 in the descending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND index_2 = %(value)s AND {page_down};

-- name: find_by_index_3
-- Find records with a value in index 3 in the ascending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND index_3 = %(value)s AND {page_up};

-- name: find_by_index_3_descending
-- Find records with a value in index 3 in the descending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND index_3 = %(value)s AND {page_down};

-- name: find_by_kind
-- Find records of one kind in the ascending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND {page_up};

-- name: find_by_kind_descending
-- Find records of one kind in the descending order of their ids, page by page.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND {page_down};

-- name: find_due
-- Find due records, the earliest first.
SELECT {record_columns} FROM kingdom.record
 WHERE kind = %(kind)s AND due_at IS NOT NULL AND due_at <= %(due_by)s
   -- CASE instead of OR: the planner estimates few rows for an OR, and would sort all due records.
   AND CASE WHEN %(state)s::text IS NOT NULL THEN state = %(state)s ELSE true END
   AND {has_value}
 ORDER BY due_at, id LIMIT %(limit)s::int;

-- name: once
-- Take a dedup key; return nothing if it is taken and has not expired.
INSERT INTO kingdom.once_key AS taken (scope, key, expires_at)
VALUES (%(scope)s, %(key)s, now() + %(keep)s::interval)
ON CONFLICT (scope, key) DO UPDATE SET expires_at = excluded.expires_at WHERE taken.expires_at < now() RETURNING 1;
