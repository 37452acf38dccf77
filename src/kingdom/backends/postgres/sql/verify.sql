-- name: cut_connections
SELECT pg_terminate_backend(pid) FROM (
  SELECT pid FROM pg_stat_activity
   WHERE application_name = %(application)s AND datname = current_database() ORDER BY random() LIMIT %(limit)s::int) x;

-- name: count_unfinished
SELECT count(*) AS events FROM kingdom.outbox_event WHERE processed_at IS NULL;

-- name: stored_events
SELECT event_id::text AS event_id, stream, partition_key, id AS position, status, lease_token AS token,
       last_error_code AS error_code FROM kingdom.outbox_event
UNION ALL
SELECT event_id::text, stream, partition_key, id, status, lease_token, last_error_code FROM kingdom.outbox_archive
ORDER BY position;

-- name: log_data
-- Not for readers that follow the log: it does not wait for transactions that are still open.
SELECT data FROM kingdom.log WHERE type = %(type)s ORDER BY xid, seq;

-- name: broken_invariants
-- One snapshot. A key has exactly one event with a finite time, its first, and one owner at most.
WITH line AS MATERIALIZED (
  SELECT stream, partition_key, min(id) AS first,
         min(id) FILTER (WHERE next_retry_at < 'infinity') AS head,
         count(*) FILTER (WHERE next_retry_at < 'infinity') AS heads,
         count(DISTINCT lease_token) FILTER (WHERE status = 'PROCESSING') AS owners
    FROM kingdom.outbox_event WHERE ordered AND processed_at IS NULL GROUP BY 1, 2),
keyed AS MATERIALIZED (
  SELECT coalesce(l.stream, q.stream) AS stream, coalesce(l.partition_key, q.partition_key) AS key,
         l.first, l.head, l.heads, l.owners, q.turn, q.blocked_by, q.rewind
    FROM line l FULL JOIN kingdom.outbox_key q ON q.stream = l.stream AND q.partition_key = l.partition_key)
SELECT 'two heads' AS what, stream || '/' || key AS subject FROM keyed WHERE heads > 1
UNION ALL SELECT 'no head', stream || '/' || key FROM keyed WHERE heads = 0 AND blocked_by IS NULL
UNION ALL SELECT 'head is not the first', stream || '/' || key FROM keyed WHERE head <> first AND rewind IS NULL
UNION ALL SELECT 'two owners', stream || '/' || key FROM keyed WHERE owners > 1
UNION ALL SELECT 'key row missing', stream || '/' || key FROM keyed WHERE turn IS NULL
UNION ALL SELECT 'key row left over', stream || '/' || key FROM keyed WHERE heads IS NULL AND blocked_by IS NULL
UNION ALL
SELECT 'in flight without a lease', e.stream || '/' || e.id FROM kingdom.outbox_event e
 WHERE e.status = 'PROCESSING' AND NOT EXISTS (SELECT FROM kingdom.outbox_lease l WHERE l.token = e.lease_token);
