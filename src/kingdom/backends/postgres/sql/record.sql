-- name: get_record
-- Read one record.
SELECT {record_columns} FROM kingdom.record WHERE kind = %(kind)s AND id = %(id)s;

-- name: insert_record
-- Insert a new record; return nothing if it exists.
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at)
VALUES (%(kind)s, %(id)s, 1, %(state)s, %(index_1)s, %(index_2)s, %(index_3)s, %(due_at)s, %(doc)s::jsonb,
        CASE WHEN %(final)s THEN clock_timestamp() END)
ON CONFLICT (kind, id) DO NOTHING RETURNING version;

-- name: insert_records
-- Insert new records. It fails if one of them exists: looking for existing records would cost the server a third more.
INSERT INTO kingdom.record (kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at)
SELECT kind, id, 1, state, index_1, index_2, index_3, due_at, doc, CASE WHEN final THEN clock_timestamp() END
  FROM jsonb_to_recordset(%(records)s::jsonb) AS x({record_types}, final boolean)
 -- The sorted order prevents deadlocks.
 ORDER BY kind, id COLLATE "C";

-- name: update_record
-- Update a record if it has the expected version; return nothing if it has another version.
UPDATE kingdom.record
   SET version = version + 1, state = %(state)s, owner = %(index_1)s, index_2 = %(index_2)s, index_3 = %(index_3)s,
       due_at = %(due_at)s, doc = %(doc)s::jsonb, updated_at = clock_timestamp(),
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
 WHERE kind = %(kind)s AND due_at <= %(due_by)s
   -- CASE instead of OR: the planner estimates few rows for an OR, and would sort all due records.
   AND CASE WHEN %(state)s::text IS NOT NULL THEN state = %(state)s ELSE true END
   AND {has_value}
 ORDER BY due_at, id LIMIT %(limit)s::int;

-- name: find_many
-- Run several of the searches above in one statement. A search reads only the branch that fits it.
SELECT wanted.number::int, r.*
  FROM unnest(%(kinds)s::text[], %(states)s::text[], %(dues)s::timestamptz[], %(afters)s::text[], %(limits)s::int[],
              %(descending)s::bool[])
       WITH ORDINALITY AS wanted(kind, state, due_by, after, at_most, descending, number)
 CROSS JOIN LATERAL (
       (SELECT {record_columns} FROM kingdom.record r
         WHERE wanted.due_by IS NULL AND wanted.state IS NOT NULL AND NOT wanted.descending
           AND r.kind = wanted.kind AND r.state = wanted.state AND r.id > wanted.after COLLATE "C"
         ORDER BY r.id LIMIT wanted.at_most)
       UNION ALL
       (SELECT {record_columns} FROM kingdom.record r
         WHERE wanted.due_by IS NULL AND wanted.state IS NOT NULL AND wanted.descending
           AND r.kind = wanted.kind AND r.state = wanted.state AND r.id < wanted.after COLLATE "C"
         ORDER BY r.id DESC LIMIT wanted.at_most)
       UNION ALL
       (SELECT {record_columns} FROM kingdom.record r
         WHERE wanted.due_by IS NULL AND wanted.state IS NULL AND NOT wanted.descending
           AND r.kind = wanted.kind AND r.id > wanted.after COLLATE "C"
         ORDER BY r.id LIMIT wanted.at_most)
       UNION ALL
       (SELECT {record_columns} FROM kingdom.record r
         WHERE wanted.due_by IS NULL AND wanted.state IS NULL AND wanted.descending
           AND r.kind = wanted.kind AND r.id < wanted.after COLLATE "C"
         ORDER BY r.id DESC LIMIT wanted.at_most)
       UNION ALL
       (SELECT {record_columns} FROM kingdom.record r
         WHERE wanted.due_by IS NOT NULL AND r.kind = wanted.kind AND r.due_at <= wanted.due_by
           AND CASE WHEN wanted.state IS NOT NULL THEN r.state = wanted.state ELSE true END
         ORDER BY r.due_at, r.id LIMIT wanted.at_most)
       ) r;

-- name: once
-- Take a dedup key; return nothing if it is taken and has not expired.
INSERT INTO kingdom.once_key AS taken (scope, key, expires_at)
VALUES (%(scope)s, %(key)s, now() + %(keep)s::interval)
ON CONFLICT (scope, key) DO UPDATE SET expires_at = excluded.expires_at WHERE taken.expires_at < now() RETURNING 1;
