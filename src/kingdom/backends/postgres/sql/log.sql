-- fragment: announce
-- Tell readers that the entries of this transaction have higher numbers than the last number that was assigned before.
SELECT pg_advisory_xact_lock_shared(7106407, mod(last_value - (NOT is_called)::int, 2147483648)::int)
  FROM kingdom.log_seq_seq

-- fragment: append_entries
-- It reads `announced`, so no entry gets its number before the lock is taken.
INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
SELECT at, type, actor, trace_id, aggregate_type, aggregate_id, data
  FROM announced, jsonb_to_recordset(%(entries)s::jsonb) AS x(
    n int, at timestamptz, type text, actor text, trace_id text, aggregate_type text, aggregate_id text, data jsonb)
 ORDER BY n

-- name: append
-- Append entries to the log in their order.
WITH announced AS MATERIALIZED ({announce})
{append_entries};

-- name: log_horizon
-- Return the last assigned number, and a row for each open transaction that has the log open for writing, with the number
-- that it has announced. The locks are read after the number, so a transaction that is missing here gets higher numbers.
WITH last AS MATERIALIZED (SELECT last_value - (NOT is_called)::int AS seq FROM kingdom.log_seq_seq)
SELECT last.seq, pg_postmaster_start_time() AS server, writers.writer, writers.announced
  FROM last LEFT JOIN LATERAL (
    SELECT virtualtransaction AS writer,
           -- The lock has only the low bits of the number.
           min(last.seq - mod(mod(last.seq - objid::bigint, 2147483648) + 2147483648, 2147483648))
             FILTER (WHERE locktype = 'advisory') AS announced
      FROM pg_locks
     WHERE granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND (locktype = 'relation' AND relation = 'kingdom.log'::regclass AND mode = 'RowExclusiveLock'
            OR locktype = 'advisory' AND classid = 7106407 AND objsubid = 2)
     GROUP BY virtualtransaction HAVING bool_or(locktype = 'relation')) writers ON true;

-- name: log_lag
-- Return for how many seconds the oldest open transaction that writes to the log has been open.
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - activity.xact_start)), 0)::float8 AS seconds
  FROM pg_locks locks JOIN pg_stat_activity activity USING (pid)
 WHERE locks.relation = 'kingdom.log'::regclass AND locks.mode = 'RowExclusiveLock'
   AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: read_log
-- Read the log after a cursor and up to the horizon, below which no entry can appear later. A transaction gets the
-- numbers of its entries after it has read what they are about, so an effect never comes before its cause.
SELECT xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log
 WHERE seq > %(seq)s::bigint AND seq <= %(horizon)s::bigint ORDER BY seq LIMIT %(limit)s::int;

-- name: read_log_about
-- Read the log about one aggregate after a cursor, with the guarantee of read_log.
SELECT xid::text AS xid, seq, at, type, actor, trace_id, aggregate_type, aggregate_id, data FROM kingdom.log
 -- `<> ''` repeats the condition of the partial index, so that the planner can use it.
 WHERE aggregate_id = %(about)s AND aggregate_id <> '' AND seq > %(seq)s::bigint AND seq <= %(horizon)s::bigint
 ORDER BY seq LIMIT %(limit)s::int;

-- name: log_end
-- Return the cursor of the last entry that read_log can return now.
SELECT xid::text AS xid, seq FROM kingdom.log WHERE seq <= %(horizon)s::bigint ORDER BY seq DESC LIMIT 1;

-- name: find_log_entry
-- Return a row if the entry of a cursor is in the log.
SELECT 1 FROM kingdom.log WHERE seq = %(seq)s::bigint AND xid = %(xid)s::text::xid8;
