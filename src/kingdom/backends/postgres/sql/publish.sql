-- name: publish
-- Unordered copies; answers the numbers of the rows that were there already.
WITH w AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    n int, event_id uuid, stream text, event_type text, schema_version int, occurred_at timestamptz,
    trace_id text, owner_id text, partition_key text, aggregate_type text, aggregate_id text,
    attributes jsonb, payload_json jsonb, max_attempts int, not_before timestamptz, event_id_given boolean)),
i AS (
  INSERT INTO kingdom.outbox_event (event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given,
    next_retry_at)
  SELECT event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given,
    greatest(clock_timestamp(), not_before)
  FROM w ORDER BY n
  ON CONFLICT (stream, event_id) DO NOTHING
  RETURNING stream, event_id)
SELECT w.n FROM w WHERE (w.stream, w.event_id) NOT IN (SELECT stream, event_id FROM i);

-- name: publish_ordered
-- One statement. The upsert takes all key rows in sorted order, those of the settled events too. A row that it had to
-- make belongs to a key without open events, whose first event becomes the head; all others wait at infinity. A row
-- that was there is locked and not written: a hot key leaves no row versions behind while something pins xmin.
WITH w AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    n int, event_id uuid, stream text, event_type text, schema_version int, occurred_at timestamptz,
    trace_id text, owner_id text, partition_key text, aggregate_type text, aggregate_id text,
    attributes jsonb, payload_json jsonb, max_attempts int, not_before timestamptz, event_id_given boolean)),
k AS (
  INSERT INTO kingdom.outbox_key AS q (stream, partition_key)
  SELECT stream, partition_key FROM w
  UNION SELECT * FROM unnest(%(lock_streams)s::text[], %(lock_keys)s::text[])
  ORDER BY 1, 2
  ON CONFLICT (stream, partition_key) DO UPDATE SET turn = q.turn WHERE false
  RETURNING stream, partition_key),
u AS MATERIALIZED (
  SELECT w.*, k.stream IS NOT NULL AS fresh FROM w
    LEFT JOIN k ON k.stream = w.stream AND k.partition_key = w.partition_key COLLATE "C"
    LEFT JOIN LATERAL (SELECT true AS known FROM kingdom.outbox_event e
                        WHERE e.stream = w.stream AND e.event_id = w.event_id LIMIT 1) e ON true
   WHERE e.known IS NULL),
i AS (
  INSERT INTO kingdom.outbox_event (event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before,
    event_id_given, next_retry_at)
  SELECT event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, true, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before,
    event_id_given, CASE WHEN fresh AND row_number() OVER (PARTITION BY stream, partition_key ORDER BY n) = 1
         THEN greatest(clock_timestamp(), not_before) ELSE 'infinity' END
  FROM u ORDER BY n)
SELECT w.n FROM w WHERE w.n NOT IN (SELECT n FROM u);

-- name: withdraw_known
-- Takes back what was just published under an id that has ended. After the insert, since who settles the first one of
-- an id holds its row, or its key, until it lies in the archive: only then does the insert go on, and this one sees it.
WITH given AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(n int, event_id uuid, stream text)),
known AS MATERIALIZED (
  SELECT given.* FROM given CROSS JOIN LATERAL (
    SELECT FROM kingdom.outbox_archive a
     WHERE a.event_id = given.event_id AND a.stream = given.stream AND a.event_id_given LIMIT 1) ended)
DELETE FROM kingdom.outbox_event e USING known WHERE e.event_id = known.event_id AND e.stream = known.stream
RETURNING known.n, e.ordered AND e.next_retry_at < 'infinity' AS was_head;

-- name: promote_fronts
-- A head that was withdrawn was the first of a key that had no open event: what is left of the key came with it.
UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
 WHERE id = ANY(ARRAY(
   SELECT front.id FROM unnest(%(streams)s::text[], %(keys)s::text[]) AS line(stream, key) CROSS JOIN LATERAL (
     SELECT e.id FROM kingdom.outbox_event e
      WHERE e.stream = line.stream AND e.partition_key = line.key COLLATE "C" AND e.ordered AND e.processed_at IS NULL
      ORDER BY e.id LIMIT 1) front));

-- name: drop_idle_keys
-- After a publish of nothing but duplicates: a key without open events keeps no row.
DELETE FROM kingdom.outbox_key q
 WHERE (q.stream, q.partition_key) IN (SELECT * FROM unnest(%(streams)s::text[], %(keys)s::text[]))
   AND q.blocked_by IS NULL
   AND NOT EXISTS (SELECT FROM kingdom.outbox_event e WHERE e.stream = q.stream
                     AND e.partition_key = q.partition_key AND e.ordered AND e.processed_at IS NULL);

-- name: stage
CREATE TEMPORARY TABLE IF NOT EXISTS outbox_staged (
  n int, event_id uuid, stream text, event_type text, schema_version int, occurred_at timestamptz,
  trace_id text, owner_id text, partition_key text, aggregate_type text, aggregate_id text,
  attributes jsonb, payload_json jsonb, max_attempts int, not_before timestamptz, event_id_given boolean)
  ON COMMIT DELETE ROWS;

-- name: copy_stage
COPY pg_temp.outbox_staged (n, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given)
  FROM STDIN;

-- name: publish_stage
WITH i AS (
  INSERT INTO kingdom.outbox_event (event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given,
    next_retry_at)
  SELECT event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
    partition_key, aggregate_type, aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given,
    greatest(clock_timestamp(), not_before)
  FROM pg_temp.outbox_staged ORDER BY n
  ON CONFLICT (stream, event_id) DO NOTHING
  RETURNING stream, event_id)
SELECT w.n FROM pg_temp.outbox_staged w
 WHERE (w.stream, w.event_id) NOT IN (SELECT stream, event_id FROM i);
