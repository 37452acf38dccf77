-- name: hold
-- Lock a lease, and return those of the given events that it still owns. Leases are always locked before events and
-- keys. `behind` is true if an earlier event of the same key is open again, because a failover has lost its settlement.
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE)
SELECT id, clock_timestamp() AS now, next_retry_at = 'infinity' AS behind FROM kingdom.outbox_event
 WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING';

-- name: hold_and_read
-- Do the same as hold, and read records. A row has either an event or a record.
WITH fenced_lease AS MATERIALIZED (SELECT token FROM kingdom.outbox_lease WHERE token = %(token)s FOR KEY SHARE),
held AS (
  SELECT id AS position, clock_timestamp() AS now, next_retry_at = 'infinity' AS behind FROM kingdom.outbox_event
   WHERE id = ANY(%(ids)s::bigint[]) AND lease_token = (SELECT token FROM fenced_lease) AND status = 'PROCESSING'),
found AS ({read_records})
SELECT held.*, found.* FROM held FULL JOIN found ON false;

-- name: fence
-- Lock the leases of events that a transaction settles without `hold`. The sorted order prevents deadlocks.
SELECT token FROM kingdom.outbox_lease WHERE token = ANY(%(tokens)s::bigint[]) ORDER BY token FOR KEY SHARE;

-- name: close_leases
-- Delete leases whose events are all settled. `witnesses` has one event of each transaction that settled them. If a
-- failover has lost such a transaction, its witness is still PROCESSING, and the lease must stay for the reaper.
DELETE FROM kingdom.outbox_lease WHERE token = ANY(%(closed)s::bigint[]) AND token <> ALL(ARRAY(
  SELECT lease_token FROM kingdom.outbox_event WHERE id = ANY(%(witnesses)s::bigint[]) AND status = 'PROCESSING'));

-- name: renew
-- Extend leases that still exist. Return them, and those of their events that an operator has cancelled.
UPDATE kingdom.outbox_lease SET expires_at = clock_timestamp() + %(lease)s::interval, renewed_at = clock_timestamp()
 WHERE token = ANY(%(tokens)s::bigint[]) RETURNING token, cancelled;

-- name: reap
-- Delete expired leases and requeue their events. Followers keep waiting behind the head of their key.
-- The first lost lease makes an event a suspect (crash_count 1), and suspects are leased alone. After that, crash_count
-- grows only if the lost lease held this event alone. No event becomes DEAD here: the next claimant decides that.
WITH expired AS MATERIALIZED (
  SELECT token, ids FROM kingdom.outbox_lease
   WHERE token >= %(low)s AND expires_at < statement_timestamp() ORDER BY token LIMIT 20 FOR UPDATE SKIP LOCKED),
deleted AS (DELETE FROM kingdom.outbox_lease WHERE token = ANY(ARRAY(SELECT token FROM expired))),
requeued AS (
  UPDATE kingdom.outbox_event
     SET status = 'PENDING', updated_at = now(), last_error_code = 'lease_lost',
         last_error_message = 'the lease expired: its worker died or stalled',
         next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at ELSE clock_timestamp() END,
         crash_count = crash_count + CASE WHEN lease_token = ANY(
           ARRAY(SELECT token FROM expired WHERE cardinality(ids) = 1)) OR crash_count = 0 THEN 1 ELSE 0 END
   WHERE id = ANY(ARRAY(SELECT unnest(ids) FROM expired)) AND lease_token = ANY(ARRAY(SELECT token FROM expired))
     AND status = 'PROCESSING'
  RETURNING stream)
SELECT (SELECT count(*) FROM expired) AS leases, (SELECT count(*) FROM requeued) AS events,
       ARRAY(SELECT DISTINCT stream FROM requeued) AS streams;

-- name: reap_orphans
-- Requeue events that are in flight without a lease. They exist only after a server has lost transactions. No claim
-- takes such events, so they become the oldest due events of their stream: it is enough to look at the first 100.
WITH RECURSIVE streams AS (
  -- This is a loose index scan: it needs one lookup per stream, however many events wait.
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM streams s WHERE s.stream IS NOT NULL),
heads AS MATERIALIZED (
  SELECT first.* FROM streams s CROSS JOIN LATERAL (
    SELECT e.id, e.stream, e.partition_key, e.lease_token, e.status FROM kingdom.outbox_event e
     WHERE e.stream = s.stream AND e.processed_at IS NULL ORDER BY e.next_retry_at, e.id LIMIT 100) first
   WHERE first.status = 'PROCESSING'
     AND NOT EXISTS (SELECT FROM kingdom.outbox_lease l WHERE l.token = first.lease_token)),
orphans AS MATERIALIZED (
  SELECT id, lease_token FROM heads
  UNION
  -- The followers of an orphaned head wait behind it, so they are not among the due events.
  SELECT follower.id, follower.lease_token FROM heads CROSS JOIN LATERAL (
    SELECT e.id, e.lease_token, e.status FROM kingdom.outbox_event e
     WHERE e.stream = heads.stream AND e.partition_key = heads.partition_key AND {in_line}
       AND e.id > heads.id ORDER BY e.id LIMIT 1000) follower
   WHERE follower.status = 'PROCESSING' AND follower.lease_token = heads.lease_token),
requeued AS (
  UPDATE kingdom.outbox_event
     SET status = 'PENDING', updated_at = now(), last_error_code = 'lease_lost',
         last_error_message = 'in flight without a lease: the server has lost transactions',
         next_retry_at = CASE WHEN next_retry_at = 'infinity' THEN next_retry_at ELSE clock_timestamp() END
   WHERE id = ANY(ARRAY(SELECT id FROM orphans)) AND status = 'PROCESSING'
     AND lease_token = ANY(ARRAY(SELECT lease_token FROM orphans))
  RETURNING stream)
SELECT count(*) AS events, array_agg(DISTINCT stream) AS streams FROM requeued;

-- name: repair_clock
-- After the clock was set back, start the waits of events and leases again, so that nothing waits longer than intended.
-- A row whose time of writing is in the future shows that the clock was set back. A time that a caller chose
-- (not_before) stays.
WITH RECURSIVE streams AS (
  (SELECT stream FROM kingdom.outbox_event WHERE processed_at IS NULL ORDER BY stream LIMIT 1)
  UNION ALL
  SELECT (SELECT e.stream FROM kingdom.outbox_event e WHERE e.processed_at IS NULL AND e.stream > s.stream
           ORDER BY e.stream LIMIT 1) FROM streams s WHERE s.stream IS NOT NULL),
-- Waiting events whose time of writing is in the future.
written_in_future AS MATERIALIZED (
  SELECT next.id FROM streams s CROSS JOIN LATERAL (
    SELECT e.id, e.updated_at FROM kingdom.outbox_event e
     WHERE e.stream = s.stream AND e.processed_at IS NULL
       AND e.next_retry_at > statement_timestamp() AND e.next_retry_at < 'infinity'
     -- The number per stream is limited. Later calls find the other events.
     ORDER BY e.next_retry_at, e.id LIMIT 1000) next
   WHERE next.updated_at > statement_timestamp() + interval '1 s'),
repaired_leases AS (
  UPDATE kingdom.outbox_lease
     SET expires_at = clock_timestamp() + (expires_at - renewed_at), renewed_at = clock_timestamp()
   -- `token > 0` is always true, and makes the planner use the primary key.
   WHERE token > 0 AND renewed_at > statement_timestamp() + interval '1 s'),
repaired_events AS (
  UPDATE kingdom.outbox_event
     SET next_retry_at = greatest(not_before, clock_timestamp() + (next_retry_at - updated_at)),
         updated_at = clock_timestamp()
   WHERE id = ANY(ARRAY(SELECT id FROM written_in_future)) AND status = 'PENDING'
     AND updated_at > statement_timestamp() + interval '1 s'
  RETURNING stream)
SELECT count(*) AS events, array_agg(DISTINCT stream) FILTER (WHERE stream IS NOT NULL) AS streams
  FROM repaired_events;

-- name: lowest_lease
-- Return the token at which the next reap starts: the lowest token of a lease. If there is no lease, return the old
-- start, because new tokens are always higher.
SELECT coalesce(min(token), %(low)s) AS token FROM kingdom.outbox_lease WHERE token >= %(low)s;
