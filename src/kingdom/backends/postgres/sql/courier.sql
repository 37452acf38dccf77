-- name: carry
-- Give copies to the courier, and return the numbers of those that were given to it before. Only an id that a publisher
-- chose can be published twice. It is remembered for 7 days, which is also the default retention of ended events.
WITH copies AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(
    n int, stream text, partition_key text, event_id uuid, event_type text, schema_version int, trace_id text,
    not_before timestamptz, value text, event_id_given boolean)),
new_ids AS (
  INSERT INTO kingdom.once_key AS known (scope, key, expires_at)
  -- The sorted order prevents deadlocks.
  SELECT 'courier/' || stream, event_id::text, now() + interval '7 days' FROM copies WHERE event_id_given ORDER BY 1, 2
  ON CONFLICT (scope, key) DO UPDATE SET expires_at = excluded.expires_at WHERE known.expires_at < now()
  RETURNING scope, key),
new_copies AS MATERIALIZED (
  SELECT * FROM copies
   WHERE NOT event_id_given OR ('courier/' || stream, event_id::text) IN (SELECT scope, key FROM new_ids)),
carried AS (
  INSERT INTO kingdom.courier_event (stream, partition_key, event_id, event_type, schema_version, trace_id, not_before,
                                     value)
  SELECT stream, partition_key, event_id, event_type, schema_version, trace_id, not_before, value
    FROM new_copies ORDER BY n)
SELECT n FROM copies WHERE n NOT IN (SELECT n FROM new_copies);

-- name: hold_courier
-- Become the courier of this store, or renew the role. Return nothing while another courier holds the role.
INSERT INTO kingdom.courier AS known (holder, expires_at) VALUES (%(holder)s, clock_timestamp() + %(lease)s::interval)
ON CONFLICT (is_only) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
 WHERE known.holder = excluded.holder OR known.expires_at < clock_timestamp()
RETURNING store, sent;

-- name: leave_courier
-- Let another courier take over at once.
UPDATE kingdom.courier SET expires_at = '-infinity' WHERE holder = %(holder)s;

-- name: lock_courier
-- Let one courier at a time add a tick.
SELECT FROM kingdom.courier FOR UPDATE;

-- name: add_tick
-- Add a tick if there are events that the last tick does not have. This statement comes after lock_courier, so its
-- snapshot contains at least what the last tick has. Ticks that the server has lost in a failover may have been sent, in
-- whole or in part, so their numbers are not used again.
WITH last AS (
  SELECT coalesce(max(number), 0) AS number FROM kingdom.courier_tick),
seen AS (
  SELECT coalesce((SELECT tick.snapshot FROM kingdom.courier_tick tick JOIN last USING (number)), '1:1:') AS snapshot)
INSERT INTO kingdom.courier_tick (number, snapshot)
SELECT greatest(last.number, %(begun)s) + 1, pg_current_snapshot() FROM last, seen
 WHERE EXISTS (SELECT FROM kingdom.courier_event WHERE xid >= pg_snapshot_xmax(seen.snapshot))
    OR EXISTS (SELECT FROM kingdom.courier_event
                WHERE xid = ANY(ARRAY(SELECT pg_snapshot_xip(seen.snapshot))));

-- name: unsent_ticks
-- Return the ticks that are not sent yet, each with the snapshots between which its events became visible.
SELECT tick.number, tick.snapshot::text AS snapshot, coalesce(earlier.snapshot, '1:1:')::text AS earlier
  FROM kingdom.courier_tick tick
  LEFT JOIN LATERAL (SELECT snapshot FROM kingdom.courier_tick t WHERE t.number < tick.number
                      ORDER BY t.number DESC LIMIT 1) earlier ON true
 WHERE tick.number > %(sent)s ORDER BY tick.number;

-- name: events_of_tick
-- Return the events of a tick after a position, in the order of `seq`: a transaction gets these numbers after it has read
-- what its events are about, so an effect never comes before its cause.
SELECT seq, stream, partition_key, event_id, event_type, schema_version, trace_id, not_before, value, created_at
  FROM kingdom.courier_event
 WHERE xid >= pg_snapshot_xmax(%(earlier)s::pg_snapshot) AND xid < pg_snapshot_xmax(%(snapshot)s::pg_snapshot)
   AND pg_visible_in_snapshot(xid, %(snapshot)s::pg_snapshot) AND seq > %(after)s
UNION ALL
SELECT seq, stream, partition_key, event_id, event_type, schema_version, trace_id, not_before, value, created_at
  FROM kingdom.courier_event
 WHERE xid = ANY(ARRAY(SELECT pg_snapshot_xip(%(earlier)s::pg_snapshot)))
   AND pg_visible_in_snapshot(xid, %(snapshot)s::pg_snapshot) AND seq > %(after)s
ORDER BY seq;

-- name: note_sent
-- Record that a tick is sent, and delete the ticks before it. The brokers know exactly what is sent; this is for people
-- and for the retention.
WITH noted AS (
  UPDATE kingdom.courier SET sent = greatest(sent, %(number)s), sent_at = clock_timestamp())
DELETE FROM kingdom.courier_tick WHERE number < %(number)s;

-- name: courier_lag
-- Return how long the oldest event has been waiting for the courier, in seconds.
WITH seen AS (
  SELECT coalesce((SELECT tick.snapshot FROM kingdom.courier_tick tick JOIN kingdom.courier ON tick.number = sent),
                  '1:1:') AS snapshot),
oldest AS (
  (SELECT created_at FROM kingdom.courier_event, seen WHERE xid >= pg_snapshot_xmax(seen.snapshot)
    ORDER BY xid, seq LIMIT 1)
  UNION ALL
  SELECT created_at FROM kingdom.courier_event, seen
   WHERE xid = ANY(ARRAY(SELECT pg_snapshot_xip(seen.snapshot))))
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 AS seconds FROM oldest;

-- name: unsent_events
-- Return the carried events that are not in the last tick that a courier has reported as sent, nor in an earlier one.
WITH last AS (
  SELECT coalesce((SELECT tick.snapshot FROM kingdom.courier_tick tick JOIN kingdom.courier ON tick.number = sent),
                  '1:1:') AS snapshot)
SELECT stream, event_id::text AS event_id, partition_key, seq FROM kingdom.courier_event, last
 WHERE NOT pg_visible_in_snapshot(xid, last.snapshot) ORDER BY seq;

-- name: remember_topic
-- Store the number of partitions of a new topic. Return the number that a topic had at its first use.
WITH known AS (
  INSERT INTO kingdom.courier_topic AS known (topic, partitions) VALUES (%(topic)s, %(partitions)s)
  ON CONFLICT (topic) DO UPDATE SET partitions = known.partitions RETURNING partitions)
SELECT partitions FROM known;
