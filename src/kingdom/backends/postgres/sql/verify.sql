-- name: cut_connections
-- Terminate up to `limit` random connections of one application.
SELECT pg_terminate_backend(pid) FROM (
  SELECT pid FROM pg_stat_activity
   WHERE application_name = %(application)s AND datname = current_database() ORDER BY random() LIMIT %(limit)s::int) x;

-- name: count_unfinished
-- Count open events.
SELECT count(*) AS events FROM kingdom.outbox_event WHERE processed_at IS NULL;

-- name: stored_events
-- Return all events, live and archived, in the order of their positions.
SELECT event_id::text AS event_id, stream, partition_key, id AS position, status, lease_token AS token,
       last_error_code AS error_code FROM kingdom.outbox_event
UNION ALL
SELECT event_id::text, stream, partition_key, id, status, lease_token, last_error_code FROM kingdom.outbox_archive
ORDER BY position;

-- name: log_data
-- Return the data of all log entries of one type. Unlike read_log, this does not wait for open transactions.
SELECT data FROM kingdom.log WHERE type = %(type)s ORDER BY seq;

-- name: broken_invariants
-- Find violations of the invariants in one snapshot. A key with open events has exactly one head, which is its first
-- open event, and events in at most one lease. A key row exists only while its key has open events or is blocked.
WITH queues AS MATERIALIZED (
  SELECT stream, partition_key, min(id) AS first,
         min(id) FILTER (WHERE next_retry_at < 'infinity') AS head,
         count(*) FILTER (WHERE next_retry_at < 'infinity') AS heads,
         count(DISTINCT lease_token) FILTER (WHERE status = 'PROCESSING') AS owners
    FROM kingdom.outbox_event WHERE ordered AND processed_at IS NULL GROUP BY 1, 2),
keyed AS MATERIALIZED (
  SELECT coalesce(queues.stream, q.stream) AS stream, coalesce(queues.partition_key, q.partition_key) AS key,
         queues.first, queues.head, queues.heads, queues.owners, q.turn, q.blocked_by, q.rewind
    FROM queues FULL JOIN kingdom.outbox_key q ON q.stream = queues.stream AND q.partition_key = queues.partition_key)
SELECT 'two heads' AS what, stream || '/' || key AS subject FROM keyed WHERE heads > 1
UNION ALL SELECT 'no head', stream || '/' || key FROM keyed WHERE heads = 0 AND blocked_by IS NULL
UNION ALL SELECT 'head is not the first', stream || '/' || key FROM keyed WHERE head <> first AND rewind IS NULL
UNION ALL SELECT 'two owners', stream || '/' || key FROM keyed WHERE owners > 1
UNION ALL SELECT 'key row missing', stream || '/' || key FROM keyed WHERE turn IS NULL
UNION ALL SELECT 'key row left over', stream || '/' || key FROM keyed WHERE heads IS NULL AND blocked_by IS NULL
UNION ALL
SELECT 'in flight without a lease', e.stream || '/' || e.id FROM kingdom.outbox_event e
 WHERE e.status = 'PROCESSING' AND NOT EXISTS (SELECT FROM kingdom.outbox_lease l WHERE l.token = e.lease_token);

-- name: count_unfinished_carried
-- Count open events, and carried events that neither the outbox has nor a handler has applied.
SELECT (SELECT count(*) FROM kingdom.outbox_event WHERE processed_at IS NULL)
     + (SELECT count(*) FROM kingdom.courier_event carried
         WHERE NOT EXISTS (SELECT FROM kingdom.log
                            WHERE log.type = %(applied)s AND log.data->>'stream' = carried.stream
                              AND log.data->>'event' = carried.event_id::text)
           AND NOT EXISTS (SELECT FROM kingdom.outbox_event event
                            WHERE event.stream = carried.stream AND event.event_id = carried.event_id)
           AND NOT EXISTS (SELECT FROM kingdom.outbox_archive archived
                            WHERE archived.stream = carried.stream AND archived.event_id = carried.event_id)) AS events;

-- name: handled_offsets
-- Return the ranges of offsets that the consumers have handled.
SELECT topic, partition, ARRAY(SELECT coalesce(lower(part), 0) FROM unnest(handled) AS part ORDER BY part) AS starts,
       ARRAY(SELECT upper(part) FROM unnest(handled) AS part ORDER BY part) AS ends
  FROM kingdom.inbox_partition;

-- name: carried_topics
-- Return the topics of the courier.
SELECT topic FROM kingdom.courier_topic ORDER BY topic;
