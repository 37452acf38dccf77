-- name: isolation
SHOW transaction_isolation;

-- name: lock_keys
-- The one sorted pass over key rows for a transaction that publishes nothing ordered.
-- LATERAL keeps it a walk along the primary key, however many keys there are.
SELECT 1 FROM (SELECT stream, key FROM unnest(%(lock_streams)s::text[], %(lock_keys)s::text[]) AS u(stream, key)
                GROUP BY 1, 2 ORDER BY 1, 2) o
 CROSS JOIN LATERAL (SELECT FROM kingdom.outbox_key q
                      WHERE q.stream = o.stream AND q.partition_key = o.key COLLATE "C" FOR UPDATE) l;

-- name: done
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
d AS (
  DELETE FROM kingdom.outbox_event
   WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' RETURNING *),
a AS (
  INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at,
    event_id_given)
  SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at,
    event_id_given
  FROM d)
SELECT id FROM d;

-- name: done_ordered
-- After the key rows were locked by an earlier statement: this one needs the fresh snapshot to find the next of a key.
-- Normally that is the next one above; after a redrive it is the rest of the run in flight, then the first that waits.
-- What is still behind another of its key is refused, here and below: the server has lost the settlement of that one.
WITH f AS MATERIALIZED (SELECT token, ids FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
d AS (
  DELETE FROM kingdom.outbox_event
   WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' RETURNING *),
a AS (
  INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at,
    event_id_given)
  SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id,
    owner_id, partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,
    max_attempts, crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at,
    event_id_given
  FROM d),
k AS MATERIALIZED (SELECT stream, partition_key, max(id) AS id, min(next_retry_at) AS due FROM d GROUP BY 1, 2),
n AS MATERIALIZED (
  SELECT q.key, q.rewind IS NOT NULL AND flying.id IS NULL AS rewound,
    CASE WHEN q.rewind IS NULL THEN next.id ELSE coalesce(flying.id, waiting.id) END AS id
    FROM k
   CROSS JOIN LATERAL (
      SELECT y.ctid AS key, y.rewind FROM kingdom.outbox_key y
       WHERE y.stream = k.stream AND y.partition_key = k.partition_key LIMIT 1) q
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE q.rewind IS NULL
         AND e.stream = k.stream AND e.partition_key = k.partition_key AND e.ordered AND e.processed_at IS NULL
         AND e.id > k.id ORDER BY e.id LIMIT 1) next ON true
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE q.rewind IS NOT NULL AND e.id = ANY((SELECT ids FROM f)::bigint[]) AND e.id > k.id
         AND e.lease_token = (SELECT token FROM f) AND e.status = 'PROCESSING'
         AND e.stream = k.stream AND e.partition_key = k.partition_key ORDER BY e.id LIMIT 1) flying ON true
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE q.rewind IS NOT NULL AND e.id >= least(q.rewind, k.id) AND e.status = 'PENDING'
         AND e.stream = k.stream AND e.partition_key = k.partition_key AND e.ordered AND e.processed_at IS NULL
       ORDER BY e.id LIMIT 1) waiting ON true),
p AS (
  UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM n WHERE id IS NOT NULL))),
g AS (DELETE FROM kingdom.outbox_key WHERE ctid = ANY(ARRAY(SELECT key FROM n WHERE id IS NULL))),
r AS (UPDATE kingdom.outbox_key SET rewind = NULL WHERE ctid = ANY(ARRAY(SELECT key FROM n WHERE rewound AND id IS NOT NULL)))
SELECT d.id FROM d JOIN k USING (stream, partition_key) WHERE k.due < 'infinity';

-- name: dead
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
UPDATE kingdom.outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(),
       last_error_code = %(code)s, last_error_message = %(message)s
 WHERE id = %(id)s AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' RETURNING id;

-- name: dead_ordered
-- Policy skip promotes the next of the key, the rest of its run being given back already; policy block leaves the key
-- row as a barrier that names its cause.
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
d AS (
  UPDATE kingdom.outbox_event
     SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(),
         last_error_code = %(code)s, last_error_message = %(message)s
   WHERE id = %(id)s AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' AND next_retry_at < 'infinity'
  RETURNING id, stream, partition_key),
n AS MATERIALIZED (
  SELECT q.key, q.rewind IS NOT NULL AS rewound, next.id FROM d
   CROSS JOIN LATERAL (
      SELECT y.ctid AS key, y.rewind FROM kingdom.outbox_key y
       WHERE y.stream = d.stream AND y.partition_key = d.partition_key LIMIT 1) q
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE e.stream = d.stream AND e.partition_key = d.partition_key AND e.ordered AND e.processed_at IS NULL
         AND e.id >= least(q.rewind, d.id) AND e.status = 'PENDING' ORDER BY e.id LIMIT 1) next ON true
   WHERE %(skip)s),
p AS (
  UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM n WHERE id IS NOT NULL))),
g AS (DELETE FROM kingdom.outbox_key WHERE ctid = ANY(ARRAY(SELECT key FROM n WHERE id IS NULL))),
r AS (UPDATE kingdom.outbox_key SET rewind = NULL WHERE ctid = ANY(ARRAY(SELECT key FROM n WHERE rewound AND id IS NOT NULL))),
b AS (
  UPDATE kingdom.outbox_key q SET blocked_by = d.id FROM d
   WHERE NOT %(skip)s AND q.stream = d.stream AND q.partition_key = d.partition_key)
SELECT id FROM d;

-- name: again
-- Retry (undo 0) and defer (undo 1); the handler came through, so the event is no suspect any more. A moment that was
-- asked for is kept apart from a wait, which begins anew where the clock is set back.
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
UPDATE kingdom.outbox_event
   SET status = 'PENDING', attempt_count = attempt_count - %(undo)s, crash_count = 0, updated_at = now(),
       next_retry_at = coalesce(%(until)s::timestamptz, clock_timestamp() + %(after)s::interval),
       not_before = coalesce(%(until)s::timestamptz, not_before),
       last_error_code = %(code)s, last_error_message = %(message)s
 WHERE id = %(id)s AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' AND next_retry_at < 'infinity'
RETURNING id;

-- name: release
-- Not run: the attempt comes back, the place in the line stays. What was claimed was due, whatever the clock says now.
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
UPDATE kingdom.outbox_event SET status = 'PENDING', attempt_count = attempt_count - 1, updated_at = now(),
       next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at
                            ELSE least(next_retry_at, clock_timestamp()) END
 WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING' RETURNING id;
