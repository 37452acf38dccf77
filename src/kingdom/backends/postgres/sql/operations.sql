-- name: stats
-- Return the backlog of each stream. The cost does not grow with the backlog: streams are found by a loose index scan,
-- counts stop at a limit, and events in flight are found by their leases.
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
in_flight AS MATERIALIZED (
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
  FROM names LEFT JOIN in_flight f USING (stream) LEFT JOIN kingdom.outbox_pause p USING (stream)
 ORDER BY names.stream;

-- name: situations
-- Return why an event waits, is in flight or has ended, for each stream that it is in.
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
       AND CASE WHEN a.ordered THEN a.processed_at IS NULL END AND a.id <> e.id AND a.next_retry_at < 'infinity'
     ORDER BY a.id LIMIT 1) ahead ON true
 WHERE e.event_id = %(event_id)s
UNION ALL
SELECT a.event_id, a.stream, a.event_type, a.status, a.attempt_count, a.max_attempts, a.crash_count,
  statement_timestamp(), NULL, a.partition_key, a.processed_at, a.last_error_code, a.last_error_message,
  NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL
  FROM kingdom.outbox_archive a WHERE a.event_id = %(event_id)s
UNION ALL
-- If a carried event has come back to the store, the row above is the newer one.
SELECT c.event_id, c.stream, c.event_type,
  CASE WHEN pg_visible_in_snapshot(c.xid, tick.snapshot) THEN 'SENT' ELSE 'UNSENT' END, 0, 0, 0,
  statement_timestamp(), c.not_before, c.partition_key, c.created_at, NULL, NULL,
  NULL, NULL, NULL, courier.holder, courier.expires_at, false, NULL, NULL, NULL
  FROM kingdom.courier_event c
  LEFT JOIN kingdom.courier ON true LEFT JOIN kingdom.courier_tick tick ON tick.number = courier.sent
 WHERE c.event_id = %(event_id)s
   AND NOT EXISTS (SELECT FROM kingdom.outbox_event e WHERE e.event_id = c.event_id AND e.stream = c.stream)
   AND NOT EXISTS (SELECT FROM kingdom.outbox_archive a WHERE a.event_id = c.event_id AND a.stream = c.stream)
ORDER BY stream;

-- name: pause
-- Pause a stream. If it is already paused, change only the reason and the actor.
INSERT INTO kingdom.outbox_pause AS p (stream, reason, actor) VALUES (%(stream)s, %(reason)s, %(actor)s)
ON CONFLICT (stream) DO UPDATE SET reason = excluded.reason, actor = excluded.actor;

-- name: resume
-- Resume a stream; return nothing if it is not paused.
DELETE FROM kingdom.outbox_pause WHERE stream = %(stream)s RETURNING stream;

-- name: dead_of_stream
-- Find dead letters of one stream in the order of their positions.
SELECT {dead_letter_columns}
  FROM kingdom.outbox_event
 WHERE processed_at IS NOT NULL AND stream = %(stream)s AND id > %(after)s
   AND (%(type)s::text IS NULL OR event_type = %(type)s) AND (%(code)s::text IS NULL OR last_error_code = %(code)s)
   AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
 ORDER BY id LIMIT %(limit)s::int;

-- name: dead_of_any
-- Find dead letters of all streams in the order of their positions.
SELECT {dead_letter_columns}
  FROM kingdom.outbox_event
 WHERE processed_at IS NOT NULL AND id > %(after)s
   AND (%(type)s::text IS NULL OR event_type = %(type)s) AND (%(code)s::text IS NULL OR last_error_code = %(code)s)
   AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
 ORDER BY id LIMIT %(limit)s::int;

-- name: events_by_positions
-- Find the events at these positions. Do not lock them, because key rows are always locked before event rows.
SELECT id, event_id, stream, partition_key, ordered FROM kingdom.outbox_event
 WHERE id = ANY(%(positions)s::bigint[]) ORDER BY id;

-- name: patch
-- Replace the payload of a dead letter, and keep the old payload in its history.
UPDATE kingdom.outbox_event
   SET payload_json = %(payload)s::jsonb, updated_at = now(),
       history = coalesce(history, '[]') || jsonb_build_object('what', 'patched', 'at', now(),
         'actor', %(actor)s::text, 'payload', payload_json)
 WHERE event_id = %(event_id)s AND stream = %(stream)s AND status = 'DEAD' RETURNING id;

-- name: lock_key
-- Lock the row of a key, creating it if needed. The returned `turn` is 0 only if the row is new.
INSERT INTO kingdom.outbox_key AS q (stream, partition_key) VALUES (%(stream)s, %(key)s)
ON CONFLICT (stream, partition_key) DO UPDATE SET turn = q.turn + 1 RETURNING turn, blocked_by, rewind;

-- name: redrive
-- Make a dead letter PENDING again at its old position. The function also serves people who use psql.
SELECT 1 WHERE kingdom.redrive_position(%(id)s::bigint, %(actor)s::text);

-- name: first_open
-- Return the first open event of a key.
SELECT id FROM kingdom.outbox_event e
 WHERE e.stream = %(stream)s AND e.partition_key = %(key)s AND {in_line} ORDER BY id LIMIT 1;

-- name: promote
-- Make a waiting event the head of its key.
UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
 WHERE id = %(id)s AND next_retry_at = 'infinity';

-- name: unblock
-- Clear the block and the rewind of a key.
UPDATE kingdom.outbox_key SET rewind = NULL, blocked_by = NULL WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: block
-- Block a key, and record the dead event that blocks it.
UPDATE kingdom.outbox_key SET blocked_by = %(id)s WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: drop_key
-- Delete the row of a key without open events.
DELETE FROM kingdom.outbox_key WHERE stream = %(stream)s AND partition_key = %(key)s;

-- name: discard
-- Archive a dead letter as DISCARDED, with the reason in its history.
WITH discarded AS (DELETE FROM kingdom.outbox_event WHERE id = %(id)s AND status = 'DEAD' RETURNING *),
archived AS (
  INSERT INTO kingdom.outbox_archive ({archive_columns}, status, history)
  SELECT {archive_columns}, 'DISCARDED',
    coalesce(history, '[]') || jsonb_build_object('what', 'discarded', 'at', now(), 'actor', %(actor)s::text,
      'reason', %(reason)s::text)
  FROM discarded)
SELECT id FROM discarded;

-- name: open_event
-- Return an open event of a stream.
SELECT id, stream, partition_key, ordered, status, lease_token FROM kingdom.outbox_event
 WHERE event_id = %(event_id)s AND stream = %(stream)s AND processed_at IS NULL;

-- name: cancel_waiting
-- End a waiting event as DEAD, and say whether it was a head.
UPDATE kingdom.outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(), last_error_code = 'cancelled',
       last_error_message = 'cancelled by ' || %(actor)s::text
 WHERE id = %(id)s AND status = 'PENDING' RETURNING next_retry_at < 'infinity' AS was_head;

-- name: cancel_running
-- Ask a worker to stop handling an event. The worker sees the request at its next renewal. The event keeps the request
-- too, in case it is released before that renewal.
WITH owner_lease AS (
  UPDATE kingdom.outbox_lease SET cancelled = array_append(array_remove(cancelled, %(id)s::bigint), %(id)s::bigint)
   WHERE token = %(token)s AND %(id)s::bigint = ANY(ids) RETURNING token)
UPDATE kingdom.outbox_event SET cancel_requested = true
 WHERE id = %(id)s AND status = 'PROCESSING' AND lease_token = (SELECT token FROM owner_lease) RETURNING id;

-- name: pins
-- Return what keeps vacuum from removing old row versions: sessions, replication slots and prepared transactions, oldest first.
-- A session is also returned if this database role may not see its age.
SELECT what, coalesce(age_seconds, 0) AS age_seconds,
       CASE WHEN age_seconds IS NULL THEN 'of unknown age: grant pg_monitor to see more' ELSE detail END AS detail FROM (
  SELECT format('session %%s of %%s', pid, usename) AS what,
         extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::float8 AS age_seconds,
         format('%%s, application %%s: %%s', state, coalesce(nullif(application_name, ''), 'unnamed'),
                left(query, 200)) AS detail, greatest(age(backend_xmin), age(backend_xid)) AS held
    -- After a write, an idle READ COMMITTED transaction has no snapshot, but its own number still holds vacuum back.
    FROM pg_stat_activity WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
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
-- Delete a batch of expired dedup keys, except those that another transaction is just taking again.
DELETE FROM kingdom.once_key WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM kingdom.once_key WHERE expires_at < now() ORDER BY expires_at LIMIT 5000 FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: remove_records
-- Delete a batch of old ended records, except those that open or dead events need or another transaction is changing.
DELETE FROM kingdom.record WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM kingdom.record WHERE kind = %(kind)s AND ended_at < now() - %(keep)s::interval
     -- An earlier version of Kingdom may have set ended_at too early.
     AND doc @> %(final_when)s
     AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(doc -> %(kept_for)s::text) AS needed_by
                       JOIN kingdom.outbox_event ON event_id = needed_by::uuid)
   ORDER BY ended_at LIMIT 5000 FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: lost_token
-- Return a row if this process has seen a higher token than the server has assigned. Then the server has lost
-- transactions.
SELECT last_value FROM kingdom.outbox_lease_number WHERE last_value < %(seen)s::bigint >> 11;

-- name: lock_tokens
-- Make sure that only one process at a time executes raise_tokens.
SELECT pg_advisory_xact_lock(%(lock)s::bigint);

-- name: raise_tokens
-- Make new tokens higher than the clock and than every token that this process has seen. The caller has executed
-- lock_tokens. The numbers jump ahead by 1000 more, because other processes take numbers at the same time.
SELECT CASE WHEN last_value < least_number THEN setval('kingdom.outbox_lease_number', least_number + 1000) END
  FROM kingdom.outbox_lease_number CROSS JOIN (
    SELECT greatest(%(seen)s::bigint >> 11, (extract(epoch FROM clock_timestamp()) * 1024)::bigint) AS least_number) l;
