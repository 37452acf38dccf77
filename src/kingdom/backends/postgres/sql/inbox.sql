-- name: take_partition
-- Become the owner of a partition. This waits for an open transaction of the previous owner, and then sees what that
-- transaction has settled. A partition that was never read starts at `first`. Epochs come from the clock and a
-- random number, because a failover may lose the last one, and its owner may still be at work.
WITH taken AS (
  INSERT INTO kingdom.inbox_partition AS known (stream, topic, partition, epoch, handled)
  VALUES (%(stream)s, %(topic)s, %(partition)s, extract(epoch FROM clock_timestamp()) * 1000000,
          int8multirange(int8range(NULL, %(first)s)))
  ON CONFLICT (stream, topic, partition) DO UPDATE
    SET epoch = greatest(known.epoch, excluded.epoch) + 1 + floor(random() * 1000000)::bigint,
        takeovers = known.takeovers + 1
  RETURNING epoch, handled, takeovers)
SELECT epoch, takeovers, ARRAY(SELECT coalesce(lower(part), 0) FROM unnest(handled) AS part ORDER BY part) AS starts,
       ARRAY(SELECT upper(part) FROM unnest(handled) AS part ORDER BY part) AS ends
  FROM taken;

-- name: hold_partitions
-- Lock the partitions that this owner still owns, and return them. The sorted order prevents deadlocks.
SELECT p.partition, clock_timestamp() AS now FROM kingdom.inbox_partition p
  JOIN unnest(%(partitions)s::int[], %(epochs)s::bigint[]) AS mine(partition, epoch) USING (partition, epoch)
 WHERE p.stream = %(stream)s AND p.topic = %(topic)s ORDER BY p.partition FOR UPDATE OF p;

-- name: settle_partitions
-- Record offsets as handled, and return the partitions. A partition is missing if another owner has taken it, if one of
-- the offsets was handled before, or if the server has lost one of those that its owner knows to be handled.
UPDATE kingdom.inbox_partition p SET handled = p.handled + mine.offsets, takeovers = 0
  FROM unnest(%(partitions)s::int[], %(epochs)s::bigint[], %(known)s::text[]::int8multirange[],
              %(offsets)s::text[]::int8multirange[]) AS mine(partition, epoch, known, offsets)
 WHERE p.stream = %(stream)s AND p.topic = %(topic)s AND p.partition = mine.partition AND p.epoch = mine.epoch
   AND p.handled @> mine.known AND NOT p.handled && mine.offsets
RETURNING p.partition;

-- name: partitions_set_back
-- Return the partitions of which the server has lost offsets that their owner knows to be handled.
SELECT mine.partition FROM unnest(%(partitions)s::int[], %(known)s::text[]::int8multirange[]) AS mine(partition, known)
  LEFT JOIN kingdom.inbox_partition p
    ON p.stream = %(stream)s AND p.topic = %(topic)s AND p.partition = mine.partition
 WHERE (p.handled @> mine.known) IS NOT TRUE;

-- name: begin_batch
-- Return a new token, whether the stream is paused, and which of the keys have events in the outbox that come first.
SELECT (nextval('kingdom.outbox_lease_number') << 11) + floor(random() * 2048)::bigint AS token,
       EXISTS (SELECT FROM kingdom.outbox_pause WHERE stream = %(stream)s) AS paused,
       ARRAY(SELECT partition_key FROM kingdom.outbox_key
              WHERE stream = %(stream)s AND partition_key = ANY(%(keys)s::text[])) AS busy;

-- name: claim_moved
-- Lease events that this transaction has put into the outbox, as if they had been claimed and run from there. An event
-- that waits there behind another one of its key is left waiting, and runs again after it.
WITH taken AS MATERIALIZED (
  SELECT id, event_id FROM kingdom.outbox_event
   WHERE event_id = ANY(%(event_ids)s::uuid[]) AND stream = %(stream)s AND next_retry_at < 'infinity'),
new_lease AS (
  INSERT INTO kingdom.outbox_lease (token, worker, ids, expires_at)
  SELECT %(token)s, 'inbox', array_agg(id), clock_timestamp() + interval '1 hour' FROM taken HAVING count(*) > 0)
UPDATE kingdom.outbox_event event
   SET status = 'PROCESSING', lease_token = %(token)s, attempt_count = 1, last_attempt_at = now()
  FROM taken WHERE event.id = taken.id
RETURNING event.id, event.event_id;

-- name: end_move
-- Delete the lease of claim_moved.
DELETE FROM kingdom.outbox_lease WHERE token = %(token)s;
