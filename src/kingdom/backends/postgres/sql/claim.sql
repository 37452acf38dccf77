-- name: claim
-- Leases that were settled whole are closed on the way, if their settlements are still there: a server that failed over
-- may have lost some, and then the lease must stay to be reaped. Of each settling transaction one event is the witness.
-- A suspect comes alone. Rows are stamped by their place, which spares a walk down the primary key for each: what is
-- locked stays there until the statement ends.
WITH closed AS (
  DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
    SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'))),
c AS MATERIALIZED (
  SELECT id, ctid AS place, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
s AS MATERIALIZED (
  SELECT * FROM c WHERE CASE WHEN (SELECT crash_count FROM c LIMIT 1) > 0 THEN id = (SELECT id FROM c LIMIT 1)
                             ELSE crash_count = 0 END),
l AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, array_agg(id), clock_timestamp() + %(lease)s::interval FROM s HAVING count(*) > 0 RETURNING token)
UPDATE kingdom.outbox_event o
   SET status = 'PROCESSING', lease_token = (SELECT token FROM l), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 WHERE o.ctid = ANY(ARRAY(SELECT place FROM s)) AND o.status = 'PENDING'
RETURNING o.id, o.event_id, o.event_type, o.schema_version, o.occurred_at, o.trace_id, o.owner_id, o.partition_key,
  o.ordered, o.aggregate_type, o.aggregate_id, o.attributes, o.payload_json, o.attempt_count, o.max_attempts,
  o.crash_count, o.lease_token, o.cancel_requested, o.created_at, nullif(o.next_retry_at, 'infinity') AS due_at;

-- name: claim_ordered
-- Some heads, each with a run of its followers up to the first that is suspect, delayed or not PENDING; runs of one are
-- read off the heads themselves. Followers are not locked: one that an operator takes away meanwhile is not stamped.
WITH closed AS (
  DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
    SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'))),
h AS MATERIALIZED (
  SELECT id, ctid AS place, stream, partition_key, ordered, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(heads)s::int FOR UPDATE SKIP LOCKED),
-- A head that was claimed and given back since the snapshot is locked in a version that the stamp cannot see: it waits
-- for the next claim, and so do its followers.
v AS MATERIALIZED (
  SELECT h.* FROM h CROSS JOIN LATERAL (SELECT FROM kingdom.outbox_event x WHERE x.ctid = h.place LIMIT 1) seen),
s AS MATERIALIZED (
  SELECT * FROM v WHERE CASE WHEN (SELECT crash_count FROM v LIMIT 1) > 0 THEN id = (SELECT id FROM v LIMIT 1)
                             ELSE crash_count = 0 END),
z AS MATERIALIZED (
  SELECT CASE WHEN coalesce(max(crash_count), 0) > 0 THEN 1
              ELSE (%(limit)s::int + count(*) - 1) / greatest(count(*), 1) END AS run FROM s),
r AS MATERIALIZED (
  SELECT f.id, f.place FROM s CROSS JOIN LATERAL (
    SELECT y.id, y.place FROM (
      SELECT e.id, e.place,
             bool_and(e.status = 'PENDING' AND (e.due AND e.crash_count = 0 OR e.id = s.id)) OVER (ORDER BY e.id) AS ok
        FROM (SELECT i.id, i.ctid AS place, i.status, i.crash_count,
                     coalesce(i.not_before <= statement_timestamp(), true) AS due
                FROM kingdom.outbox_event i
               WHERE i.stream = s.stream AND i.partition_key = s.partition_key AND i.ordered
                 AND i.processed_at IS NULL AND i.id >= s.id
               ORDER BY i.id LIMIT (SELECT CASE WHEN run > 1 THEN run ELSE 0 END FROM z)) e) y
     WHERE y.ok
    UNION ALL SELECT s.id, s.place WHERE NOT s.ordered OR (SELECT run FROM z) = 1) f
   LIMIT %(limit)s::int),
l AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, array_agg(id), clock_timestamp() + %(lease)s::interval FROM r HAVING count(*) > 0 RETURNING token)
UPDATE kingdom.outbox_event o
   SET status = 'PROCESSING', lease_token = (SELECT token FROM l), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 WHERE o.ctid = ANY(ARRAY(SELECT place FROM r)) AND o.status = 'PENDING'
RETURNING o.id, o.event_id, o.event_type, o.schema_version, o.occurred_at, o.trace_id, o.owner_id, o.partition_key,
  o.ordered, o.aggregate_type, o.aggregate_id, o.attributes, o.payload_json, o.attempt_count, o.max_attempts,
  o.crash_count, o.lease_token, o.cancel_requested, o.created_at, nullif(o.next_retry_at, 'infinity') AS due_at;
