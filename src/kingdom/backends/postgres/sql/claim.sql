-- name: claim
-- Lease due events of an unordered stream: no event is in two leases, and each claim gets a token of its own.
-- A suspect, which is an event that has lost a lease before (crash_count > 0), is leased alone.
WITH closed_leases AS (
  -- Delete leases whose events are all settled. One event of each settling transaction is its witness: if a failover
  -- has lost the transaction, the witness is still PROCESSING, and the lease must stay for the reaper.
  DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
    SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'))),
due AS MATERIALIZED (
  SELECT id, ctid AS place, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     -- The watermark skips dead row versions at the front of the index.
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
-- If the first due event is a suspect, take only this event. Otherwise take all events except suspects.
chosen AS MATERIALIZED (
  SELECT * FROM due WHERE CASE WHEN (SELECT crash_count FROM due LIMIT 1) > 0 THEN id = (SELECT id FROM due LIMIT 1)
                               ELSE crash_count = 0 END),
new_lease AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, array_agg(id), clock_timestamp() + %(lease)s::interval FROM chosen HAVING count(*) > 0
  RETURNING token)
UPDATE kingdom.outbox_event event
   SET status = 'PROCESSING', lease_token = (SELECT token FROM new_lease), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 -- The ctid saves an index lookup per row. A locked row keeps its ctid until the statement ends.
 WHERE event.ctid = ANY(ARRAY(SELECT place FROM chosen)) AND event.status = 'PENDING'
RETURNING {delivery_columns};

-- name: claim_ordered
-- Lease due events of an ordered stream: no two leases hold events of one key. From each of some keys, take the first
-- open event (the head) and some events directly after it (the followers), up to the first follower that is a suspect,
-- delayed or not PENDING. A head that is a suspect is leased alone.
WITH closed_leases AS (
  -- `claim` above explains this.
  DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
    SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'))),
heads AS MATERIALIZED (
  SELECT id, ctid AS place, stream, partition_key, ordered, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(heads)s::int FOR UPDATE SKIP LOCKED),
-- A head that was claimed and released after the snapshot is locked in a newer row version. The UPDATE below cannot see
-- that version, so this head and its followers are left for the next claim.
visible AS MATERIALIZED (
  SELECT heads.* FROM heads
   CROSS JOIN LATERAL (SELECT FROM kingdom.outbox_event e WHERE e.ctid = heads.place LIMIT 1) seen),
chosen AS MATERIALIZED (
  SELECT * FROM visible
   WHERE CASE WHEN (SELECT crash_count FROM visible LIMIT 1) > 0 THEN id = (SELECT id FROM visible LIMIT 1)
              ELSE crash_count = 0 END),
-- The limit is divided among the chosen keys.
events_per_key AS MATERIALIZED (
  SELECT CASE WHEN coalesce(max(crash_count), 0) > 0 THEN 1
              ELSE (%(limit)s::int + count(*) - 1) / greatest(count(*), 1) END AS events FROM chosen),
-- Followers are not locked: the UPDATE below skips a follower that an operator has changed meanwhile.
chosen_events AS MATERIALIZED (
  SELECT member.id, member.place FROM chosen CROSS JOIN LATERAL (
    SELECT checked.id, checked.place FROM (
      SELECT queued.id, queued.place,
             bool_and(queued.status = 'PENDING' AND (queued.due AND queued.crash_count = 0 OR queued.id = chosen.id))
               OVER (ORDER BY queued.id) AS unbroken
        FROM (SELECT e.id, e.ctid AS place, e.status, e.crash_count,
                     coalesce(e.not_before <= statement_timestamp(), true) AS due
                FROM kingdom.outbox_event e
               WHERE e.stream = chosen.stream AND e.partition_key = chosen.partition_key AND {in_line}
                 AND e.id >= chosen.id
               -- If only one event of each key is taken, no follower is read.
               ORDER BY e.id LIMIT (SELECT CASE WHEN events > 1 THEN events ELSE 0 END FROM events_per_key)) queued
             ) checked
     WHERE checked.unbroken
    UNION ALL
    SELECT chosen.id, chosen.place WHERE NOT chosen.ordered OR (SELECT events FROM events_per_key) = 1) member
   LIMIT %(limit)s::int),
new_lease AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, array_agg(id), clock_timestamp() + %(lease)s::interval FROM chosen_events HAVING count(*) > 0
  RETURNING token)
UPDATE kingdom.outbox_event event
   SET status = 'PROCESSING', lease_token = (SELECT token FROM new_lease), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 WHERE event.ctid = ANY(ARRAY(SELECT place FROM chosen_events)) AND event.status = 'PENDING'
RETURNING {delivery_columns};
