-- Column lists and conditions that several statements use. `{name}` in a statement stands for the fragment of that
-- name. The other files also have fragments: larger parts of their statements.

-- fragment: archive_columns
-- The columns that are copied when an event moves to the archive. Status, history and processed_at are set separately.
id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, ordered,
    aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts, crash_count, lease_token,
    last_attempt_at, last_error_code, last_error_message, created_at, event_id_given

-- fragment: publish_columns
-- The columns that a publisher sets.
event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, aggregate_type,
    aggregate_id, attributes, payload_json, max_attempts, not_before, event_id_given

-- fragment: publish_types
-- publish_columns with types.
event_id uuid, stream text, event_type text, schema_version int, occurred_at timestamptz,
    trace_id text, owner_id text, partition_key text, aggregate_type text, aggregate_id text,
    attributes jsonb, payload_json jsonb, max_attempts int, not_before timestamptz, event_id_given boolean

-- fragment: delivery_columns
-- The columns of a delivery. Python has no equivalent of an infinite time, so it becomes NULL.
event.id, event.event_id, event.event_type, event.schema_version, event.occurred_at, event.trace_id, event.owner_id,
  event.partition_key, event.ordered, event.aggregate_type, event.aggregate_id,
  nullif(event.attributes, '{}') AS attributes, event.payload_json, event.attempt_count, event.max_attempts,
  event.crash_count, event.lease_token, event.cancel_requested, event.created_at, nullif(event.next_retry_at, 'infinity') AS due_at

-- fragment: in_line
-- The predicate of the index outbox_line, word for word: the event `e` is ordered and open. Written as two conditions, it
-- would also fit outbox_open. If a stream was nearly empty when the statement was planned, both indexes seem to cost the
-- same, and with outbox_open each key reads the whole backlog of its stream.
CASE WHEN e.ordered THEN e.processed_at IS NULL END

-- fragment: record_columns
kind, id, version, state, owner AS index_1, index_2, index_3, due_at, doc

-- fragment: record_types
kind text, id text, version bigint, state text, index_1 text, index_2 text, index_3 text, due_at timestamptz, doc jsonb

-- fragment: dead_letter_columns
-- next_retry_at is left out: it is infinite if an event died behind the head of its key, and the driver cannot read it.
id, event_id, stream, event_type, schema_version, occurred_at, trace_id, owner_id, partition_key, aggregate_type,
       aggregate_id, attributes, payload_json, attempt_count, last_error_code, last_error_message, history, created_at,
       processed_at

-- fragment: has_value
CASE %(number)s::int WHEN 1 THEN owner = %(value)s WHEN 2 THEN index_2 = %(value)s WHEN 3 THEN index_3 = %(value)s ELSE true END

-- fragment: page_up
id > %(after)s ORDER BY id LIMIT %(limit)s::int

-- fragment: page_down
id < %(after)s ORDER BY id DESC LIMIT %(limit)s::int
