-- name: begin_snapshot
-- Let all later statements of this transaction read the same snapshot.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: remove_timeouts
-- Remove the time limits during this transaction: an export reads whole tables and may wait for a slow disk. Only a
-- wait for a lock stays limited. Times are returned in UTC.
SELECT set_config('idle_in_transaction_session_timeout', '0', true), set_config('statement_timeout', '0', true),
       set_config('lock_timeout', '10s', true), set_config('enable_seqscan', 'on', true),
       set_config('TimeZone', 'UTC', true);

-- name: in_flight
-- Count the events in flight and their leases. An export contains no leases, so it is refused while events are in
-- flight.
SELECT count(*) AS events, count(DISTINCT lease_token) AS leases FROM kingdom.outbox_event
 WHERE processed_at IS NULL AND status = 'PROCESSING';

-- name: census
-- Count everything that an export contains.
SELECT (SELECT count(*) FROM kingdom.outbox_event WHERE processed_at IS NULL) AS open_events,
       (SELECT count(*) FROM kingdom.outbox_event WHERE processed_at IS NOT NULL) AS dead_events,
       (SELECT count(*) FROM kingdom.outbox_archive) AS ended_events,
       (SELECT count(*) FROM kingdom.outbox_key WHERE blocked_by IS NOT NULL) AS blocked_keys,
       (SELECT count(*) FROM kingdom.record) AS records,
       (SELECT count(*) FROM kingdom.once_key) AS dedup_keys,
       (SELECT count(*) FROM kingdom.outbox_pause) AS paused_streams,
       (SELECT count(*) FROM kingdom.log) AS log_entries,
       (SELECT count(*) FROM kingdom.inbox_partition) + (SELECT count(*) FROM kingdom.courier)
         + (SELECT count(*) FROM kingdom.courier_topic) AS transport_positions;

-- name: last_numbers
-- Return the highest position and token that the store can have used. A token is a number with 11 random low bits.
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM kingdom.outbox_event_id_seq) AS last_position,
       (SELECT CASE WHEN is_called THEN ((last_value + 1) << 11) - 1 ELSE 0 END FROM kingdom.outbox_lease_number) AS last_token;

-- name: export_live
-- Export open and dead events in the order of their positions.
SELECT {archive_columns}, status, history, processed_at, cancel_requested, not_before,
       -- The due time of a dead event has no meaning.
       CASE WHEN status = 'PENDING' THEN nullif(next_retry_at, 'infinity') END AS due_at
  FROM kingdom.outbox_event ORDER BY id;

-- name: export_archive
-- Export ended events in the order of their positions, with the columns of export_live.
SELECT {archive_columns}, status, history, processed_at, false AS cancel_requested, NULL AS not_before, NULL AS due_at
  FROM kingdom.outbox_archive ORDER BY id;

-- name: export_blocks
-- Export the keys that a dead event blocks.
SELECT stream, partition_key AS key, blocked_by FROM kingdom.outbox_key WHERE blocked_by IS NOT NULL ORDER BY 1, 2;

-- name: export_records
-- Export records in the order of kind and id.
SELECT kind, id, version, state, owner AS index_1, due_at, doc, created_at, updated_at, ended_at, index_2, index_3
  FROM kingdom.record ORDER BY kind, id;

-- name: export_dedup_keys
-- Export dedup keys in the order of scope and key.
SELECT scope, key, expires_at FROM kingdom.once_key ORDER BY scope, key;

-- name: export_pauses
-- Export paused streams in the order of their names.
SELECT stream, reason, actor, since FROM kingdom.outbox_pause ORDER BY stream;

-- name: export_log
-- Export the log in its order.
SELECT l.type, l.actor, l.data, l.at, l.trace_id, l.aggregate_type, l.aggregate_id, l.logged_at
  FROM kingdom.log l ORDER BY l.seq;

-- name: export_read_partitions
-- Export how far the consumers have read the partitions of topics.
SELECT stream, topic, partition, epoch, handled::text AS handled FROM kingdom.inbox_partition ORDER BY 1, 2, 3;

-- name: export_courier
-- Export the id of the store in its topics, and what its courier has sent.
SELECT store, sent FROM kingdom.courier;

-- name: export_topics
-- Export the numbers of partitions by which the courier chooses the partition of a key.
SELECT topic, partitions FROM kingdom.courier_topic ORDER BY topic;

-- name: lock_store
-- Make writers wait until the import ends. Readers see the empty store until then.
LOCK TABLE kingdom.outbox_lease, kingdom.record, kingdom.outbox_key, kingdom.outbox_event, kingdom.outbox_archive,
  kingdom.outbox_pause, kingdom.once_key, kingdom.log, kingdom.inbox_partition, kingdom.courier, kingdom.courier_topic
  IN SHARE ROW EXCLUSIVE MODE;

-- name: import_live
-- Import open and dead events.
COPY kingdom.outbox_event ({archive_columns},
    status, history, processed_at, cancel_requested, not_before, next_retry_at) FROM STDIN;

-- name: import_archive
-- Import ended events.
COPY kingdom.outbox_archive ({archive_columns}, status, history, processed_at) FROM STDIN;

-- name: import_blocks
-- Import blocked keys.
COPY kingdom.outbox_key (stream, partition_key, blocked_by) FROM STDIN;

-- name: import_records
-- Import records.
COPY kingdom.record (kind, id, version, state, owner, due_at, doc, created_at, updated_at, ended_at, index_2, index_3) FROM STDIN;

-- name: import_dedup_keys
-- Import dedup keys.
COPY kingdom.once_key (scope, key, expires_at) FROM STDIN;

-- name: import_pauses
-- Import paused streams.
COPY kingdom.outbox_pause (stream, reason, actor, since) FROM STDIN;

-- name: import_log
-- Import the log. Entries get new cursors, so a cursor of the old store has no meaning here.
COPY kingdom.log (type, actor, data, at, trace_id, aggregate_type, aggregate_id, logged_at) FROM STDIN;

-- name: import_read_partitions
-- Import how far the consumers have read, so that they continue there.
COPY kingdom.inbox_partition (stream, topic, partition, epoch, handled) FROM STDIN;

-- name: import_courier
-- Import the id of the store and what its courier has sent. The topics keep the exact position under this id.
COPY kingdom.courier (store, sent, holder, expires_at) FROM STDIN;

-- name: import_topics
-- Import the numbers of partitions.
COPY kingdom.courier_topic (topic, partitions) FROM STDIN;

-- name: rebuild_keys
-- Create a row for each key with open events. The head is the event with a finite next_retry_at. If an open event has a
-- lower id than the head, it was redriven while the head was in flight, and is handled after the head (`rewind`).
INSERT INTO kingdom.outbox_key (stream, partition_key, rewind)
SELECT stream, partition_key, CASE WHEN min(id) < min(id) FILTER (WHERE next_retry_at < 'infinity') THEN min(id) END
  FROM kingdom.outbox_event WHERE ordered AND processed_at IS NULL GROUP BY 1, 2
ON CONFLICT (stream, partition_key) DO NOTHING;

-- name: continue_numbers
-- Make new positions and tokens higher than all that the old or the new store has used.
SELECT setval('kingdom.outbox_event_id_seq', greatest(%(last_position)s::bigint, (SELECT max(id) FROM (
         SELECT id FROM kingdom.outbox_event UNION ALL SELECT id FROM kingdom.outbox_archive) x),
         (SELECT last_value FROM kingdom.outbox_event_id_seq))),
       setval('kingdom.outbox_lease_number', greatest(%(last_token)s::bigint >> 11, (SELECT max(lease_token) >> 11 FROM (
         SELECT lease_token FROM kingdom.outbox_event UNION ALL SELECT lease_token FROM kingdom.outbox_archive) x),
         (SELECT last_value FROM kingdom.outbox_lease_number)));
