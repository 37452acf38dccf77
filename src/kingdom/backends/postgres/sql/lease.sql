-- name: hold
-- First statement of a reaction: the lease row is locked before any event or key row, everywhere. An event that is
-- still behind another of its key, though that one was settled, tells of a server that has lost the settlement.
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
SELECT id, clock_timestamp() AS now, next_retry_at = 'infinity' AS behind FROM kingdom.outbox_event
 WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING';

-- name: fence
-- The same lock for leases that were not held before; one sorted pass.
SELECT token FROM kingdom.outbox_lease WHERE token = ANY(%(tokens)s::bigint[]) ORDER BY token FOR KEY SHARE;

-- name: close_leases
-- As every claim does.
DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
  SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'));

-- name: renew
UPDATE kingdom.outbox_lease SET expires_at = clock_timestamp() + %(lease)s::interval, renewed_at = clock_timestamp()
 WHERE token = ANY(%(tokens)s::bigint[]) RETURNING token, cancelled;

-- name: reap
-- Only counts: whoever claims a quarantined event settles it as DEAD. The first loss makes a suspect, which then runs
-- alone in its process; only leases lost so count against it. Followers stay at infinity.
WITH x AS MATERIALIZED (
  SELECT token, ids FROM kingdom.outbox_lease
   WHERE token >= %(low)s AND expires_at < statement_timestamp() ORDER BY token LIMIT 20 FOR UPDATE SKIP LOCKED),
g AS (DELETE FROM kingdom.outbox_lease WHERE token = ANY(ARRAY(SELECT token FROM x))),
u AS (
UPDATE kingdom.outbox_event
   SET status = 'PENDING', updated_at = now(), last_error_code = 'lease_lost',
       last_error_message = 'the lease expired: its worker died or stalled',
       next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at ELSE clock_timestamp() END,
       crash_count = crash_count + CASE WHEN lease_token = ANY(
         ARRAY(SELECT token FROM x WHERE cardinality(ids) = 1)) OR crash_count = 0 THEN 1 ELSE 0 END
 WHERE id = ANY(ARRAY(SELECT unnest(ids) FROM x)) AND lease_token = ANY(ARRAY(SELECT token FROM x))
   AND status = 'PROCESSING'
RETURNING stream)
SELECT (SELECT count(*) FROM x) AS leases, (SELECT count(*) FROM u) AS events, ARRAY(SELECT DISTINCT stream FROM u) AS streams;

-- name: reap_orphans
-- Events in flight without a lease, which only a damaged store has. Nobody claims them, so they come to the front of
-- what is due: a look at the first of each stream finds them, however long the backlog is. The rest of an orphaned run
-- lies behind its head.
WITH RECURSIVE streams AS (
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM streams s WHERE s.stream IS NOT NULL),
heads AS MATERIALIZED (
  SELECT first.* FROM streams s CROSS JOIN LATERAL (
    SELECT e.id, e.stream, e.partition_key, e.ordered, e.lease_token, e.status FROM kingdom.outbox_event e
     WHERE e.stream = s.stream AND e.processed_at IS NULL ORDER BY e.next_retry_at, e.id LIMIT 100) first
   WHERE first.status = 'PROCESSING'
     AND NOT EXISTS (SELECT FROM kingdom.outbox_lease l WHERE l.token = first.lease_token)),
orphans AS MATERIALIZED (
  SELECT id, lease_token FROM heads
  UNION
  SELECT follower.id, follower.lease_token FROM heads CROSS JOIN LATERAL (
    SELECT e.id, e.lease_token, e.status FROM kingdom.outbox_event e
     WHERE heads.ordered AND e.stream = heads.stream AND e.partition_key = heads.partition_key AND e.ordered
       AND e.processed_at IS NULL AND e.id > heads.id ORDER BY e.id LIMIT 1000) follower
   WHERE follower.status = 'PROCESSING' AND follower.lease_token = heads.lease_token),
given_back AS (
  UPDATE kingdom.outbox_event
     SET status = 'PENDING', updated_at = now(), last_error_code = 'lease_lost',
         last_error_message = 'in flight without a lease: the server has lost transactions',
         next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at ELSE clock_timestamp() END
   WHERE id = ANY(ARRAY(SELECT id FROM orphans)) AND status = 'PROCESSING'
     AND lease_token = ANY(ARRAY(SELECT lease_token FROM orphans))
  RETURNING stream)
SELECT count(*) AS events, array_agg(DISTINCT stream) FILTER (WHERE stream IS NOT NULL) AS streams FROM given_back;

-- name: mend_clock
-- A row that was written in the future proves that the clock was set back since. Its wait begins anew, and so does its
-- lease; a moment that somebody asked for stays. Of each stream the next thousand are looked at, whatever else waits.
WITH RECURSIVE streams AS (
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM streams s WHERE s.stream IS NOT NULL),
late AS MATERIALIZED (
  SELECT next.id FROM streams s CROSS JOIN LATERAL (
    SELECT e.id, e.updated_at FROM kingdom.outbox_event e
     WHERE e.stream = s.stream AND e.processed_at IS NULL
       AND e.next_retry_at > statement_timestamp() AND e.next_retry_at < 'infinity'
     ORDER BY e.next_retry_at, e.id LIMIT 1000) next
   WHERE next.updated_at > statement_timestamp() + interval '1 s'),
leases AS (
  UPDATE kingdom.outbox_lease
     SET expires_at = clock_timestamp() + (expires_at - renewed_at), renewed_at = clock_timestamp()
   WHERE token > 0 AND renewed_at > statement_timestamp() + interval '1 s'),
mended AS (
  UPDATE kingdom.outbox_event
     SET next_retry_at = greatest(not_before, clock_timestamp() + (next_retry_at - updated_at)),
         updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM late)) AND status = 'PENDING'
     AND updated_at > statement_timestamp() + interval '1 s'
  RETURNING stream)
SELECT count(*) AS events, array_agg(DISTINCT stream) FILTER (WHERE stream IS NOT NULL) AS streams FROM mended;

-- name: lowest_lease
-- Tokens only grow, so where no lease is left the next look starts where this one did.
SELECT coalesce(min(token), %(low)s) AS token FROM kingdom.outbox_lease WHERE token >= %(low)s;
