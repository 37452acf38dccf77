-- fragment: read_copies
-- Read copies from JSON; n is the number of a copy. A row leaves out empty and default values, and what it shares with
-- the first copy, because each value costs the server time.
SELECT ordinality::int - 1 AS n, event_id, coalesce(stream, %(stream)s) AS stream,
       coalesce(event_type, %(event_type)s) AS event_type, coalesce(schema_version, 1) AS schema_version, occurred_at,
       trace_id, coalesce(owner_id, '') AS owner_id, partition_key, coalesce(aggregate_type, '') AS aggregate_type,
       coalesce(aggregate_id, '') AS aggregate_id, coalesce(attributes, '{}') AS attributes, payload_json,
       coalesce(max_attempts, %(max_attempts)s::int) AS max_attempts, not_before,
       coalesce(event_id_given, false) AS event_id_given
  FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb) AS ({publish_types})) WITH ORDINALITY

-- name: publish
-- Insert copies into unordered streams, and return the numbers of the copies that their stream already has.
-- Almost always there are none. Then `copies` is read only once, and so it is not materialized.
WITH copies AS NOT MATERIALIZED (
  {read_copies}),
inserted AS (
  INSERT INTO kingdom.outbox_event ({publish_columns}, next_retry_at)
  SELECT {publish_columns}, greatest(clock_timestamp(), not_before)
  FROM copies ORDER BY n
  ON CONFLICT (stream, event_id) DO NOTHING
  RETURNING stream, event_id)
SELECT copies.n FROM copies
 WHERE (SELECT count(*) FROM inserted) < %(count)s
   AND (copies.stream, copies.event_id) NOT IN (SELECT stream, event_id FROM inserted);

-- fragment: insert_one
-- Insert one copy into an unordered stream. Single parameters cost the server half as much as one JSON document.
INSERT INTO kingdom.outbox_event ({publish_columns}, next_retry_at)
VALUES (%(event_id)s, %(stream)s, %(event_type)s, %(schema_version)s, %(occurred_at)s, %(trace_id)s, %(owner_id)s,
        %(partition_key)s, %(aggregate_type)s, %(aggregate_id)s, %(attributes)s, %(payload_json)s, %(max_attempts)s,
        %(not_before)s, %(event_id_given)s, greatest(clock_timestamp(), %(not_before)s::timestamptz))

-- name: publish_one
-- Insert one copy into an unordered stream, and return one row, or nothing if the stream already has the copy.
{insert_one}
ON CONFLICT (stream, event_id) DO NOTHING
RETURNING 1;

-- name: publish_one_fresh
-- Insert one copy whose id is new into an unordered stream. It fails if the stream already has it: looking for a
-- duplicate would cost the server a tenth more.
{insert_one};

-- name: publish_fresh
-- Insert copies whose ids are new into unordered streams. It fails if a stream already has one of them: looking for
-- duplicates would cost the server a fifth more.
INSERT INTO kingdom.outbox_event ({publish_columns}, next_retry_at)
SELECT {publish_columns}, greatest(clock_timestamp(), not_before) FROM ({read_copies}) copies;

-- fragment: insert_ordered
-- Insert `copies` into ordered streams; `new_copies` has those that their stream did not have. Each key has exactly one
-- head: if a key has no row yet, it has no open events, and its first copy becomes the head. All other copies wait with
-- an infinite next_retry_at.
-- Lock the rows of all these keys, and of the keys of the events that this transaction settles. The sorted order
-- prevents deadlocks.
new_keys AS (
  INSERT INTO kingdom.outbox_key AS existing (stream, partition_key)
  SELECT stream, partition_key FROM copies
  UNION SELECT * FROM unnest(%(lock_streams)s::text[], %(lock_keys)s::text[])
  ORDER BY 1, 2
  -- `WHERE false` locks an existing row without writing it, so that a busy key leaves no dead row versions.
  ON CONFLICT (stream, partition_key) DO UPDATE SET turn = existing.turn WHERE false
  RETURNING stream, partition_key),
new_copies AS MATERIALIZED (
  SELECT copies.*, new_keys.stream IS NOT NULL AS has_new_key FROM copies
    LEFT JOIN new_keys
      ON new_keys.stream = copies.stream AND new_keys.partition_key = copies.partition_key COLLATE "C"
    LEFT JOIN LATERAL (SELECT true AS known FROM kingdom.outbox_event e
                        WHERE e.stream = copies.stream AND e.event_id = copies.event_id LIMIT 1) e ON true
   WHERE e.known IS NULL),
inserted AS (
  INSERT INTO kingdom.outbox_event ({publish_columns}, ordered, next_retry_at)
  SELECT {publish_columns}, true,
    CASE WHEN has_new_key AND row_number() OVER (PARTITION BY stream, partition_key ORDER BY n) = 1
         THEN greatest(clock_timestamp(), not_before) ELSE 'infinity' END
  FROM new_copies ORDER BY n)

-- name: publish_ordered
-- Insert copies into ordered streams, and return the numbers of the copies that their stream already has. `alone` is true
-- if the statement commits by itself. It then fails by a division by zero if there is such a copy, because its new key
-- has to be deleted again.
WITH copies AS MATERIALIZED (
  {read_copies}),
{insert_ordered}
SELECT copies.n FROM copies
 WHERE CASE WHEN copies.n IN (SELECT n FROM new_copies) THEN false
            WHEN %(alone)s THEN 1 / (copies.n - copies.n) = 1
            ELSE true END;

-- name: write
-- Store records, publish to ordered streams and append to the log. Return the numbers of the records whose stored version
-- is not the expected one, and of the copies that their stream already has. `alone` is true if the statement commits by
-- itself. It must then write everything or nothing, so it fails by a division by zero if it returned a number.
WITH changes AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(records)s::jsonb) AS x(n int, {record_types}, final boolean)),
stored AS (
  INSERT INTO kingdom.record AS known (kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at)
  SELECT kind, id, version + 1, state, index_1, index_2, index_3, due_at, doc,
         CASE WHEN final THEN clock_timestamp() END
    -- The sorted order prevents deadlocks.
    FROM changes ORDER BY kind, id COLLATE "C"
  ON CONFLICT (kind, id) DO UPDATE
     SET version = excluded.version, state = excluded.state, owner = excluded.owner, index_2 = excluded.index_2,
         index_3 = excluded.index_3, due_at = excluded.due_at, doc = excluded.doc, updated_at = clock_timestamp(),
         ended_at = CASE WHEN excluded.ended_at IS NOT NULL THEN coalesce(known.ended_at, excluded.ended_at) END
   WHERE known.version = excluded.version - 1
  -- xmax is 0 only in a new row. So a record that was deleted is not stored again at a later version.
  RETURNING kind, id, (xmax = 0) = (version = 1) AS as_expected),
copies AS MATERIALIZED (
  {read_copies}
   -- Records are locked before keys, also if there are no copies.
   WHERE (SELECT count(*) FROM stored) >= 0),
{insert_ordered},
announced AS MATERIALIZED ({announce}),
appended AS (
  {append_entries}),
refused AS MATERIALIZED (
  SELECT ARRAY(SELECT changes.n FROM changes WHERE NOT EXISTS (
           SELECT FROM stored WHERE stored.kind = changes.kind AND stored.id = changes.id AND stored.as_expected)) AS records,
         ARRAY(SELECT copies.n FROM copies WHERE copies.n NOT IN (SELECT n FROM new_copies)) AS copies)
SELECT records, copies FROM refused
 WHERE CASE WHEN %(alone)s THEN 1 / (cardinality(records) + cardinality(copies) = 0)::int = 1 ELSE true END;

-- name: withdraw_known
-- Delete new copies again if an event with the same id has already ended in their stream. An id that a publisher chose
-- is handled once. The insert has waited for a settlement of the same id, so this later statement sees the archived
-- event.
WITH given AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(n int, event_id uuid, stream text)),
known AS MATERIALIZED (
  SELECT given.* FROM given CROSS JOIN LATERAL (
    SELECT FROM kingdom.outbox_archive a
     WHERE a.event_id = given.event_id AND a.stream = given.stream AND a.event_id_given LIMIT 1) ended)
DELETE FROM kingdom.outbox_event e USING known WHERE e.event_id = known.event_id AND e.stream = known.stream
RETURNING known.n, e.ordered AND e.next_retry_at < 'infinity' AS was_head;

-- name: promote_heads
-- Make the first open event of a key its head if withdraw_known has deleted the head. That head was new in this
-- transaction, so the other open events of the key are new as well.
UPDATE kingdom.outbox_event SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
 WHERE id = ANY(ARRAY(
   SELECT first_open.id FROM unnest(%(streams)s::text[], %(keys)s::text[]) AS wanted(stream, key) CROSS JOIN LATERAL (
     SELECT e.id FROM kingdom.outbox_event e
      WHERE e.stream = wanted.stream AND e.partition_key = wanted.key COLLATE "C" AND {in_line}
      ORDER BY e.id LIMIT 1) first_open));

-- name: drop_idle_keys
-- Delete the key rows that publish_ordered or write has created only for duplicates: a key without open events has no
-- row.
DELETE FROM kingdom.outbox_key q
 WHERE (q.stream, q.partition_key) IN (SELECT * FROM unnest(%(streams)s::text[], %(keys)s::text[]))
   AND q.blocked_by IS NULL
   AND NOT EXISTS (SELECT FROM kingdom.outbox_event e WHERE e.stream = q.stream
                     AND e.partition_key = q.partition_key AND {in_line});

-- name: notify
-- Wake the workers of other processes. A lost wake-up costs one polling period, so its commit does not wait for the disk.
WITH fast_commit AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT pg_notify(%(channel)s, stream) FROM fast_commit, jsonb_array_elements_text(%(streams)s::jsonb) AS stream;
