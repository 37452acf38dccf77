-- name: stats
-- Streams by skipping along the index; counts stop at a limit; what is in flight is read from the leases.
WITH RECURSIVE open_streams AS (
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM open_streams s WHERE s.stream IS NOT NULL),
dead_streams AS (
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NOT NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NOT NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM dead_streams s WHERE s.stream IS NOT NULL),
names AS (
  SELECT stream FROM open_streams WHERE stream IS NOT NULL
  UNION SELECT stream FROM dead_streams WHERE stream IS NOT NULL
  UNION SELECT stream FROM kingdom.outbox_pause),
flying AS MATERIALIZED (
  SELECT e.stream, count(*) AS n
    FROM (SELECT token, unnest(ids) AS id FROM kingdom.outbox_lease) l
   CROSS JOIN LATERAL (SELECT o.stream FROM kingdom.outbox_event o
                        WHERE o.id = l.id AND o.lease_token = l.token AND o.status = 'PROCESSING') e
   GROUP BY e.stream)
SELECT names.stream, p.reason AS paused, coalesce(f.n, 0) AS processing,
  (SELECT count(*) FROM (SELECT FROM kingdom.outbox_event e WHERE e.stream = names.stream AND e.processed_at IS NULL
     LIMIT %(limit)s::int + coalesce(f.n, 0)) c) - coalesce(f.n, 0) AS pending,
  (SELECT count(*) FROM (SELECT FROM kingdom.outbox_event e WHERE e.stream = names.stream
     AND e.processed_at IS NOT NULL LIMIT %(limit)s::int) c) AS dead,
  coalesce((SELECT extract(epoch FROM statement_timestamp() - e.created_at) FROM kingdom.outbox_event e
     WHERE e.stream = names.stream AND e.processed_at IS NULL AND e.status = 'PENDING'
       AND e.next_retry_at <= statement_timestamp()
     ORDER BY e.next_retry_at, e.id LIMIT 1), 0)::float8 AS oldest_pending_seconds
  FROM names LEFT JOIN flying f USING (stream) LEFT JOIN kingdom.outbox_pause p USING (stream)
 ORDER BY names.stream;

-- name: situations
SELECT e.event_id, e.stream, e.event_type AS type, e.status, e.attempt_count AS attempt, e.max_attempts, e.crash_count,
  statement_timestamp() AS now, nullif(e.next_retry_at, 'infinity') AS due_at, e.partition_key, e.processed_at,
  e.last_error_code AS error_code, e.last_error_message AS error_message,
  p.since AS paused_since, p.reason AS paused_reason, p.actor AS paused_by,
  l.worker, l.expires_at AS lease_until, coalesce(e.id = ANY(l.cancelled), false) AS cancel_requested,
  ahead.event_id AS ahead_event_id, ahead.status AS ahead_status, barrier.event_id AS blocked_by_event_id
  FROM kingdom.outbox_event e
  LEFT JOIN kingdom.outbox_pause p ON p.stream = e.stream
  LEFT JOIN kingdom.outbox_lease l ON l.token = e.lease_token AND e.status = 'PROCESSING'
  LEFT JOIN kingdom.outbox_key q ON e.ordered AND q.stream = e.stream AND q.partition_key = e.partition_key
  LEFT JOIN kingdom.outbox_event barrier ON barrier.id = q.blocked_by AND e.processed_at IS NULL
  LEFT JOIN LATERAL (
    SELECT a.event_id, a.status FROM kingdom.outbox_event a
     WHERE e.ordered AND e.next_retry_at = 'infinity' AND a.stream = e.stream AND a.partition_key = e.partition_key
       AND a.ordered AND a.processed_at IS NULL AND a.id <> e.id AND a.next_retry_at < 'infinity'
     ORDER BY a.id LIMIT 1) ahead ON true
 WHERE e.event_id = %(event_id)s
UNION ALL
SELECT a.event_id, a.stream, a.event_type, a.status, a.attempt_count, a.max_attempts, a.crash_count,
  statement_timestamp(), NULL, a.partition_key, a.processed_at, a.last_error_code, a.last_error_message,
  NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL
  FROM kingdom.outbox_archive a WHERE a.event_id = %(event_id)s
ORDER BY stream;

-- name: pause
INSERT INTO kingdom.outbox_pause AS p (stream, reason, actor) VALUES (%(stream)s, %(reason)s, %(actor)s)
ON CONFLICT (stream) DO UPDATE SET reason = excluded.reason, actor = excluded.actor;

-- name: resume
DELETE FROM kingdom.outbox_pause WHERE stream = %(stream)s RETURNING stream;

-- name: dead_of_stream
-- Not every column: the time of one that died while it waited in its line is infinite, which no driver can read.
SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, aggregate_type,
       aggregate_id, attributes, payload_json, attempt_count, last_error_code, last_error_message, history, created_at,
       processed_at
  FROM kingdom.outbox_event
 WHERE processed_at IS NOT NULL AND stream = %(stream)s AND id > %(after)s
   AND (%(type)s::text IS NULL OR event_type = %(type)s) AND (%(code)s::text IS NULL OR last_error_code = %(code)s)
   AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
 ORDER BY id LIMIT %(limit)s::int;

-- name: dead_of_any
SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, aggregate_type,
       aggregate_id, attributes, payload_json, attempt_count, last_error_code, last_error_message, history, created_at,
       processed_at
  FROM kingdom.outbox_event
 WHERE processed_at IS NOT NULL AND id > %(after)s
   AND (%(type)s::text IS NULL OR event_type = %(type)s) AND (%(code)s::text IS NULL OR last_error_code = %(code)s)
   AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
 ORDER BY id LIMIT %(limit)s::int;

-- name: dead_by_positions
-- Read without a lock first, so that key rows are locked before event rows, as everywhere.
SELECT id, event_id, stream, partition_key, ordered FROM kingdom.outbox_event
 WHERE id = ANY(%(positions)s::bigint[]) AND status = 'DEAD' ORDER BY id;

-- name: patch
UPDATE kingdom.outbox_event
   SET payload_json = %(payload)s::jsonb, updated_at = now(),
       history = coalesce(history, '[]') || jsonb_build_object('what', 'patched', 'at', now(),
         'actor', %(actor)s::text, 'payload', payload_json)
 WHERE event_id = %(event_id)s AND stream = %(stream)s AND status = 'DEAD' RETURNING id;

-- name: lock_line
INSERT INTO kingdom.outbox_key AS q (stream, partition_key) VALUES (%(stream)s, %(key)s)
ON CONFLICT (stream, partition_key) DO UPDATE SET turn = q.turn + 1 RETURNING turn, blocked_by, rewind;

-- name: revive
-- A new round: attempts from zero, the old round kept in the history. In a line it waits until it is placed.
UPDATE kingdom.outbox_event
   SET status = 'PENDING', processed_at = NULL, attempt_count = 0, crash_count = 0, cancel_requested = false,
       updated_at = now(),
       next_retry_at = CASE WHEN ordered THEN 'infinity' ELSE clock_timestamp() END,
       last_error_code = NULL, last_error_message = NULL,
       history = coalesce(history, '[]') || jsonb_build_object('what', 'redriven', 'at', now(),
         'actor', %(actor)s::text, 'attempts', attempt_count, 'crashes', crash_count, 'died_at', processed_at,
         'code', last_error_code, 'message', last_error_message)
 WHERE id = %(id)s AND status = 'DEAD' RETURNING id;

-- name: line_front
SELECT id FROM kingdom.outbox_event
 WHERE stream = %(stream)s AND partition_key = %(key)s AND ordered AND processed_at IS NULL ORDER BY id LIMIT 1;

-- name: demote_head
-- Answers nothing where the head runs, or was claimed just now.
UPDATE kingdom.outbox_event SET next_retry_at = 'infinity'
 WHERE status = 'PENDING' AND id = (
   SELECT id FROM kingdom.outbox_event
    WHERE stream = %(stream)s AND partition_key = %(key)s AND ordered AND processed_at IS NULL
      AND next_retry_at < 'infinity' ORDER BY id LIMIT 1) RETURNING id;

-- name: promote
UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
 WHERE id = %(id)s AND next_retry_at = 'infinity';

-- name: rewind
UPDATE kingdom.outbox_key SET rewind = least(rewind, %(id)s::bigint) WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: unblock
UPDATE kingdom.outbox_key SET rewind = NULL, blocked_by = NULL WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: block
UPDATE kingdom.outbox_key SET blocked_by = %(id)s WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: drop_key
DELETE FROM kingdom.outbox_key WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: discard
WITH d AS (DELETE FROM kingdom.outbox_event WHERE id = %(id)s AND status = 'DEAD' RETURNING *),
a AS (
  INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, status, attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at,
    event_id_given)
  SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, 'DISCARDED', attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message,
    coalesce(history, '[]') || jsonb_build_object('what', 'discarded', 'at', now(), 'actor', %(actor)s::text,
      'reason', %(reason)s::text), created_at, event_id_given
  FROM d)
SELECT id FROM d;

-- name: open_event
SELECT id, stream, partition_key, ordered, status, lease_token FROM kingdom.outbox_event
 WHERE event_id = %(event_id)s AND stream = %(stream)s AND processed_at IS NULL;

-- name: cancel_waiting
UPDATE kingdom.outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(), last_error_code = 'cancelled',
       last_error_message = 'cancelled by ' || %(actor)s::text
 WHERE id = %(id)s AND status = 'PENDING' RETURNING next_retry_at < 'infinity' AS was_head;

-- name: cancel_running
-- Told to the worker at its next renewal, and kept on the event in case that the worker gives it back before.
WITH l AS (
  UPDATE kingdom.outbox_lease SET cancelled = array_append(array_remove(cancelled, %(id)s::bigint), %(id)s::bigint)
   WHERE token = %(token)s AND %(id)s::bigint = ANY(ids) RETURNING token)
UPDATE kingdom.outbox_event SET cancel_requested = true
 WHERE id = %(id)s AND status = 'PROCESSING' AND lease_token = (SELECT token FROM l) RETURNING id;

-- name: pins
-- A role that may not see the age of others' sessions is told of them all the same.
SELECT what, coalesce(age_seconds, 0) AS age_seconds,
       CASE WHEN age_seconds IS NULL THEN 'of unknown age: grant pg_monitor to see more' ELSE detail END AS detail FROM (
  SELECT format('session %%s of %%s', pid, usename) AS what,
         extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::float8 AS age_seconds,
         format('%%s, application %%s: %%s', state, coalesce(nullif(application_name, ''), 'unnamed'),
                left(query, 200)) AS detail, age(backend_xmin) AS held
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
  UNION ALL
  SELECT format('replication slot %%s', slot_name), 0, CASE WHEN active THEN 'active' ELSE 'inactive' END,
         greatest(age(xmin), age(catalog_xmin))
    FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
  UNION ALL
  SELECT format('prepared transaction %%s', gid), extract(epoch FROM clock_timestamp() - prepared)::float8, owner::text,
         age(transaction) FROM pg_prepared_xacts) x
 WHERE age_seconds IS NULL OR age_seconds >= %(seconds)s::float8 OR what LIKE 'replication%%'
 ORDER BY held DESC NULLS LAST, age_seconds DESC;

-- name: remove_once_keys
DELETE FROM kingdom.once_key WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM kingdom.once_key WHERE expires_at < now() ORDER BY expires_at LIMIT 5000))
  AND expires_at < now() RETURNING 1;

-- name: remove_records
-- Open and dead events need their records, however old these are; an earlier version may have ended one too early.
DELETE FROM kingdom.record WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM kingdom.record WHERE kind = %(kind)s AND ended_at < now() - %(keep)s::interval
     AND doc @> %(final_when)s
     AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(doc -> %(kept_for)s::text) AS needed_by
                       JOIN kingdom.outbox_event ON event_id = needed_by::uuid)
   ORDER BY ended_at LIMIT 5000))
  AND ended_at < now() - %(keep)s::interval RETURNING 1;

-- name: lost_token
SELECT last_value FROM kingdom.outbox_lease_number WHERE last_value < %(seen)s::bigint >> 11;

-- name: lock_tokens
SELECT pg_advisory_xact_lock(%(lock)s::bigint);

-- name: lift_tokens
-- After that lock. Far above, since others take numbers meanwhile.
SELECT CASE WHEN last_value < least_number THEN setval('kingdom.outbox_lease_number', least_number + 1000) END
  FROM kingdom.outbox_lease_number CROSS JOIN (
    SELECT greatest(%(seen)s::bigint >> 11, (extract(epoch FROM clock_timestamp()) * 1024)::bigint) AS least_number) l;
