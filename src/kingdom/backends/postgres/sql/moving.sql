-- name: freeze
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: take_time
-- A move reads whole tables and may wait for a slow disk on the other side; moments are written in one zone.
SELECT set_config('idle_in_transaction_session_timeout', '0', true), set_config('statement_timeout', '0', true),
       set_config('lock_timeout', '10s', true), set_config('enable_seqscan', 'on', true),
       set_config('TimeZone', 'UTC', true);

-- name: in_flight
SELECT count(*) AS events, count(DISTINCT lease_token) AS leases FROM kingdom.outbox_event
 WHERE processed_at IS NULL AND status = 'PROCESSING';

-- name: census
SELECT (SELECT count(*) FROM kingdom.outbox_event WHERE processed_at IS NULL) AS open_events,
       (SELECT count(*) FROM kingdom.outbox_event WHERE processed_at IS NOT NULL) AS dead_events,
       (SELECT count(*) FROM kingdom.outbox_archive) AS ended_events,
       (SELECT count(*) FROM kingdom.outbox_key WHERE blocked_by IS NOT NULL) AS blocked_keys,
       (SELECT count(*) FROM kingdom.record) AS records,
       (SELECT count(*) FROM kingdom.once_key) AS dedup_keys,
       (SELECT count(*) FROM kingdom.outbox_pause) AS paused_streams,
       (SELECT count(*) FROM kingdom.log) AS log_entries;

-- name: last_numbers
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM kingdom.outbox_event_id_seq) AS last_position,
       (SELECT CASE WHEN is_called THEN ((last_value + 1) << 11) - 1 ELSE 0 END FROM kingdom.outbox_lease_number) AS last_token;

-- name: export_live
-- When a dead event was due says nothing any more.
SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, ordered,
       aggregate_type, aggregate_id, attributes, payload_json, status, attempt_count, max_attempts, crash_count,
       lease_token, cancel_requested, not_before, last_attempt_at, last_error_code, last_error_message, history,
       created_at, processed_at, event_id_given,
       CASE WHEN status = 'PENDING' THEN nullif(next_retry_at, 'infinity') END AS due_at
  FROM kingdom.outbox_event ORDER BY id;

-- name: export_archive
SELECT id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, ordered,
       aggregate_type, aggregate_id, attributes, payload_json, status, attempt_count, max_attempts, crash_count,
       lease_token, false AS cancel_requested, NULL AS not_before, last_attempt_at, last_error_code,
       last_error_message, history, created_at, processed_at, event_id_given, NULL AS due_at
  FROM kingdom.outbox_archive ORDER BY id;

-- name: export_blocks
SELECT stream, partition_key AS key, blocked_by FROM kingdom.outbox_key WHERE blocked_by IS NOT NULL ORDER BY 1, 2;

-- name: export_records
SELECT kind, id, version, state, owner, due_at, doc, created_at, updated_at, ended_at
  FROM kingdom.record ORDER BY kind, id;

-- name: export_dedup_keys
SELECT scope, key, expires_at FROM kingdom.once_key ORDER BY scope, key;

-- name: export_pauses
SELECT stream, reason, actor, since FROM kingdom.outbox_pause ORDER BY stream;

-- name: export_log
SELECT l.type, l.actor, l.data, l.at, l.trace_id, l.aggregate_type, l.aggregate_id, l.logged_at
  FROM kingdom.log l ORDER BY l.xid, l.seq;

-- name: close_store
-- Who writes waits until everything is in; who reads sees the empty store until then.
LOCK TABLE kingdom.outbox_lease, kingdom.record, kingdom.outbox_key, kingdom.outbox_event, kingdom.outbox_archive,
  kingdom.outbox_pause, kingdom.once_key, kingdom.log IN SHARE ROW EXCLUSIVE MODE;

-- name: import_live
COPY kingdom.outbox_event (id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, status, attempt_count, max_attempts,
  crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at, processed_at,
  event_id_given, cancel_requested, not_before, next_retry_at) FROM STDIN;

-- name: import_archive
COPY kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id,
  partition_key, ordered, aggregate_type, aggregate_id, attributes, payload_json, status, attempt_count, max_attempts,
  crash_count, lease_token, last_attempt_at, last_error_code, last_error_message, history, created_at, processed_at,
  event_id_given) FROM STDIN;

-- name: import_blocks
COPY kingdom.outbox_key (stream, partition_key, blocked_by) FROM STDIN;

-- name: import_records
COPY kingdom.record (kind, id, version, state, owner, due_at, doc, created_at, updated_at, ended_at) FROM STDIN;

-- name: import_dedup_keys
COPY kingdom.once_key (scope, key, expires_at) FROM STDIN;

-- name: import_pauses
COPY kingdom.outbox_pause (stream, reason, actor, since) FROM STDIN;

-- name: import_log
-- Sequence and transaction are this store's own: a cursor of the old one means nothing here.
COPY kingdom.log (type, actor, data, at, trace_id, aggregate_type, aggregate_id, logged_at) FROM STDIN;

-- name: adopt_log
-- An entry that is seen before its transaction has begun came with a dump, from a server that had counted further. No
-- reader has passed the number of this transaction, and the sequence keeps the order.
UPDATE kingdom.log SET xid = pg_current_xact_id() WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());

-- name: rebuild_lines
-- One row per key with open events. A head that is not the first was passed by a redriven event, which comes next.
INSERT INTO kingdom.outbox_key (stream, partition_key, rewind)
SELECT stream, partition_key, CASE WHEN min(id) < min(id) FILTER (WHERE next_retry_at < 'infinity') THEN min(id) END
  FROM kingdom.outbox_event WHERE ordered AND processed_at IS NULL GROUP BY 1, 2
ON CONFLICT (stream, partition_key) DO NOTHING;

-- name: go_on_counting
-- Positions and tokens only grow: behind what was ever given on either side.
SELECT setval('kingdom.outbox_event_id_seq', greatest(%(last_position)s::bigint, (SELECT max(id) FROM (
         SELECT id FROM kingdom.outbox_event UNION ALL SELECT id FROM kingdom.outbox_archive) x),
         (SELECT last_value FROM kingdom.outbox_event_id_seq))),
       setval('kingdom.outbox_lease_number', greatest(%(last_token)s::bigint >> 11, (SELECT max(lease_token) >> 11 FROM (
         SELECT lease_token FROM kingdom.outbox_event UNION ALL SELECT lease_token FROM kingdom.outbox_archive) x),
         (SELECT last_value FROM kingdom.outbox_lease_number)));
