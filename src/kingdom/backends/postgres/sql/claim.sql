-- name: claim
-- Leases that were settled whole are closed on the way. A suspect comes alone.
WITH closed AS (DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[])),
c AS MATERIALIZED (
  SELECT id, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
p AS (
  SELECT CASE WHEN (SELECT crash_count FROM c LIMIT 1) > 0 THEN ARRAY(SELECT id FROM c LIMIT 1)
              ELSE ARRAY(SELECT id FROM c WHERE crash_count = 0) END AS ids),
l AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, ids, clock_timestamp() + %(lease)s::interval FROM p WHERE ids <> '{}' RETURNING token, ids)
UPDATE kingdom.outbox_event o
   SET status = 'PROCESSING', lease_token = (SELECT token FROM l), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 WHERE o.id = ANY((SELECT ids FROM l)::bigint[]) AND o.status = 'PENDING'
RETURNING o.id, o.event_id, o.event_type, o.schema_version, o.occurred_at, o.trace_id, o.owner_id, o.partition_key,
  o.ordered, o.aggregate_type, o.aggregate_id, o.attributes, o.payload_json, o.attempt_count, o.max_attempts,
  o.crash_count, o.lease_token, o.created_at, nullif(o.next_retry_at, 'infinity') AS due_at;

-- name: claim_ordered
-- Some heads, each with a run of its followers up to the first that is suspect or not PENDING; runs of one are read
-- off the heads themselves.
WITH closed AS (DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[])),
h AS MATERIALIZED (
  SELECT id, stream, partition_key, ordered, crash_count FROM kingdom.outbox_event
   WHERE stream = %(stream)s AND processed_at IS NULL AND status = 'PENDING'
     AND next_retry_at <= statement_timestamp() AND next_retry_at >= %(watermark)s::timestamptz
     AND NOT EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s)
   ORDER BY next_retry_at, id LIMIT %(heads)s::int FOR UPDATE SKIP LOCKED),
s AS MATERIALIZED (
  SELECT * FROM h WHERE CASE WHEN (SELECT crash_count FROM h LIMIT 1) > 0 THEN id = (SELECT id FROM h LIMIT 1)
                             ELSE crash_count = 0 END),
z AS MATERIALIZED (SELECT CASE WHEN coalesce(max(crash_count), 0) > 0 THEN 1
                  ELSE greatest(%(limit)s::int / greatest(count(*), 1), 1) END AS run FROM s),
p AS (
  SELECT ARRAY(
    SELECT f.id FROM s CROSS JOIN LATERAL (
      SELECT y.id FROM (
        SELECT e.id, bool_and(e.status = 'PENDING' AND (e.crash_count = 0 OR e.id = s.id)) OVER (ORDER BY e.id) AS ok
          FROM (SELECT i.id, i.status, i.crash_count FROM kingdom.outbox_event i
                 WHERE i.stream = s.stream AND i.partition_key = s.partition_key AND i.ordered
                   AND i.processed_at IS NULL AND i.id >= s.id
                 ORDER BY i.id LIMIT (SELECT CASE WHEN run > 1 THEN run ELSE 0 END FROM z)) e) y
       WHERE y.ok
      UNION ALL SELECT s.id WHERE NOT s.ordered OR (SELECT run FROM z) = 1) f) AS ids),
l AS (
  INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)
  SELECT %(worker)s, ids, clock_timestamp() + %(lease)s::interval FROM p WHERE ids <> '{}' RETURNING token, ids)
UPDATE kingdom.outbox_event o
   SET status = 'PROCESSING', lease_token = (SELECT token FROM l), attempt_count = attempt_count + 1,
       last_attempt_at = now(), updated_at = now()
 WHERE o.id = ANY((SELECT ids FROM l)::bigint[]) AND o.status = 'PENDING'
RETURNING o.id, o.event_id, o.event_type, o.schema_version, o.occurred_at, o.trace_id, o.owner_id, o.partition_key,
  o.ordered, o.aggregate_type, o.aggregate_id, o.attributes, o.payload_json, o.attempt_count, o.max_attempts,
  o.crash_count, o.lease_token, o.created_at, nullif(o.next_retry_at, 'infinity') AS due_at;
