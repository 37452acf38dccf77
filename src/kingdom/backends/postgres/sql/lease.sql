-- name: hold
-- First statement of a reaction: the lease row is locked before any event or key row, everywhere.
WITH f AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
SELECT id, clock_timestamp() AS now FROM kingdom.outbox_event
 WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM f) AND status = 'PROCESSING';

-- name: fence
-- The same lock for leases that were not held before; one sorted pass.
SELECT token FROM kingdom.outbox_lease WHERE token = ANY(%(tokens)s::bigint[]) ORDER BY token FOR KEY SHARE;

-- name: close_leases
DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]);

-- name: renew
UPDATE kingdom.outbox_lease SET expires_at = clock_timestamp() + %(lease)s::interval
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

-- name: lowest_lease
-- Tokens only grow, so where no lease is left the next look starts where this one did.
SELECT coalesce(min(token), %(low)s) AS token FROM kingdom.outbox_lease WHERE token >= %(low)s;
