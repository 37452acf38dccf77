-- name: isolation
-- Return the isolation level of the current transaction.
SHOW transaction_isolation;

-- name: lock_keys
-- Lock the key rows of settled events. The sorted order prevents deadlocks. A transaction that also publishes ordered
-- events uses publish_ordered or write instead. LATERAL makes the planner look up each key in the primary key.
SELECT 1 FROM (SELECT stream, key FROM unnest(%(lock_streams)s::text[], %(lock_keys)s::text[]) AS u(stream, key)
                GROUP BY 1, 2 ORDER BY 1, 2) wanted
 CROSS JOIN LATERAL (SELECT FROM kingdom.outbox_key q
                      WHERE q.stream = wanted.stream AND q.partition_key = wanted.key COLLATE "C" FOR UPDATE) locked;

-- name: done
-- Archive finished events that the lease still owns, and return their ids. `alone` is true if the transaction commits
-- without looking at these ids. It must then finish all events or none, so the statement fails by a division by zero if
-- the lease does not own all events.
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
finished AS (
  DELETE FROM kingdom.outbox_event
   WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING'
  RETURNING *),
archived AS (
  INSERT INTO kingdom.outbox_archive ({archive_columns}, history)
  SELECT {archive_columns}, history FROM finished)
SELECT ARRAY(SELECT id FROM finished) AS ids
 WHERE CASE WHEN %(alone)s THEN 1 / ((SELECT count(*) FROM finished) = cardinality(%(ids)s::bigint[]))::int = 1
            ELSE true END;

-- name: done_ordered
-- Archive finished events of ordered streams that the lease still owns, make the next event of each key its head, and
-- return the ids of the finished events. `promoted` is true if there is such a next event. The key rows were locked by an
-- earlier statement, because only a snapshot that is taken after the lock contains all next events. `done` above explains
-- `alone`.
WITH fenced_lease AS MATERIALIZED (SELECT token, ids FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
finished AS (
  DELETE FROM kingdom.outbox_event
   WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING'
  RETURNING *),
archived AS (
  INSERT INTO kingdom.outbox_archive ({archive_columns}, history)
  SELECT {archive_columns}, history FROM finished),
finished_keys AS MATERIALIZED (
  SELECT stream, partition_key, max(id) AS id, array_agg(id) AS ids, min(next_retry_at) AS due
    FROM finished GROUP BY 1, 2),
-- Find the next head of each key. Normally it is the event with the next higher id (`next`). After a redrive (`rewind`),
-- it is the next event of the key that this lease still holds (`flying`), or else the lowest waiting event (`waiting`).
next_heads AS MATERIALIZED (
  SELECT key_row.place, key_row.rewind IS NOT NULL AND flying.id IS NULL AS rewound,
    CASE WHEN key_row.rewind IS NULL THEN next.id ELSE coalesce(flying.id, waiting.id) END AS id
    FROM finished_keys last
   CROSS JOIN LATERAL (
      SELECT q.ctid AS place, q.rewind FROM kingdom.outbox_key q
       WHERE q.stream = last.stream AND q.partition_key = last.partition_key LIMIT 1) key_row
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE key_row.rewind IS NULL
         AND e.stream = last.stream AND e.partition_key = last.partition_key AND {in_line}
         AND e.id > last.id ORDER BY e.id LIMIT 1) next ON true
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE key_row.rewind IS NOT NULL AND e.id = ANY((SELECT ids FROM fenced_lease)::bigint[]) AND e.id > last.id
         -- A lease is of one stream. A predicate on the stream would let the planner read a whole index of another order.
         AND e.lease_token = (SELECT token FROM fenced_lease) AND e.status = 'PROCESSING'
         AND e.partition_key = last.partition_key
       ORDER BY e.id LIMIT 1) flying ON true
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE key_row.rewind IS NOT NULL AND e.id >= least(key_row.rewind, last.id) AND e.status = 'PENDING'
         AND e.stream = last.stream AND e.partition_key = last.partition_key AND {in_line}
       ORDER BY e.id LIMIT 1) waiting ON true),
promoted AS (
  UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM next_heads WHERE id IS NOT NULL))),
idle_keys AS (
  DELETE FROM kingdom.outbox_key WHERE ctid = ANY(ARRAY(SELECT place FROM next_heads WHERE id IS NULL))),
rewound_keys AS (
  UPDATE kingdom.outbox_key SET rewind = NULL
   WHERE ctid = ANY(ARRAY(SELECT place FROM next_heads WHERE rewound AND id IS NOT NULL))),
in_order AS MATERIALIZED (
  -- If an earlier event of the key is still open, the server has lost the settlement of that event. Then nothing is
  -- returned for the key, and the transaction fails.
  SELECT unnest(ids) AS id FROM finished_keys WHERE due < 'infinity')
SELECT ARRAY(SELECT id FROM in_order) AS ids, EXISTS (SELECT FROM next_heads WHERE id IS NOT NULL) AS promoted
 WHERE CASE WHEN %(alone)s THEN 1 / ((SELECT count(*) FROM in_order) = cardinality(%(ids)s::bigint[]))::int = 1
            ELSE true END;

-- name: dead
-- End an event as DEAD if the lease still owns it.
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
UPDATE kingdom.outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(),
       last_error_code = %(code)s, last_error_message = %(message)s
 WHERE id = %(id)s AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING' RETURNING id;

-- name: dead_ordered
-- End an event of an ordered stream as DEAD if the lease still owns it. With the policy `skip`, the next event of the
-- key becomes the head; the later events of the key in this lease are released already. With the policy `block`, this
-- event blocks the key.
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
dead AS (
  UPDATE kingdom.outbox_event
     SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = now(),
         last_error_code = %(code)s, last_error_message = %(message)s
   WHERE id = %(id)s AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING'
     -- If an earlier event of the key is still open, the server has lost the settlement of that event: change nothing.
     AND next_retry_at < 'infinity'
  RETURNING id, stream, partition_key),
next_heads AS MATERIALIZED (
  SELECT key_row.place, key_row.rewind IS NOT NULL AS rewound, next.id FROM dead
   CROSS JOIN LATERAL (
      SELECT q.ctid AS place, q.rewind FROM kingdom.outbox_key q
       WHERE q.stream = dead.stream AND q.partition_key = dead.partition_key LIMIT 1) key_row
    LEFT JOIN LATERAL (
      SELECT e.id FROM kingdom.outbox_event e
       WHERE e.stream = dead.stream AND e.partition_key = dead.partition_key AND {in_line}
         AND e.id >= least(key_row.rewind, dead.id) AND e.status = 'PENDING' ORDER BY e.id LIMIT 1) next ON true
   WHERE %(skip)s),
promoted AS (
  UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM next_heads WHERE id IS NOT NULL))),
idle_keys AS (
  DELETE FROM kingdom.outbox_key WHERE ctid = ANY(ARRAY(SELECT place FROM next_heads WHERE id IS NULL))),
rewound_keys AS (
  UPDATE kingdom.outbox_key SET rewind = NULL
   WHERE ctid = ANY(ARRAY(SELECT place FROM next_heads WHERE rewound AND id IS NOT NULL))),
blocked_keys AS (
  UPDATE kingdom.outbox_key q SET blocked_by = dead.id FROM dead
   WHERE NOT %(skip)s AND q.stream = dead.stream AND q.partition_key = dead.partition_key)
SELECT id FROM dead;

-- name: reschedule
-- Requeue an event if the lease still owns it: for a retry (undo 0), or for a deferral, which is no attempt (undo 1).
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
UPDATE kingdom.outbox_event
   -- The handler answered, so the event is no longer suspected of crashing workers.
   SET status = 'PENDING', attempt_count = attempt_count - %(undo)s, crash_count = 0, updated_at = now(),
       next_retry_at = coalesce(%(until)s::timestamptz, clock_timestamp() + %(after)s::interval),
       -- A time that the handler chose is kept in not_before: repair_clock starts other waits again, but not this one.
       not_before = coalesce(%(until)s::timestamptz, not_before),
       last_error_code = %(code)s, last_error_message = %(message)s
 -- If an earlier event of the key is still open, the server has lost the settlement of that event: change nothing.
 WHERE id = %(id)s AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING'
   AND next_retry_at < 'infinity'
RETURNING id;

-- name: release
-- Requeue events that did not run. They keep their order, and the attempt does not count. An earlier statement of the
-- transaction, `hold` or `fence`, has locked the lease.
WITH released AS (
  UPDATE kingdom.outbox_event SET status = 'PENDING', attempt_count = attempt_count - 1, updated_at = now(),
         -- A claimed event was due, so it stays due, even if the clock was set back since.
         next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at
                              ELSE least(next_retry_at, clock_timestamp()) END
   WHERE id = ANY(%(ids)s::bigint[]) AND status = 'PROCESSING'
     AND lease_token = (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s)
  RETURNING id)
SELECT ARRAY(SELECT id FROM released) AS ids;
