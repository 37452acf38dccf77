-- Events of streams with a transport, until the courier has sent them. Rows are only inserted, and leave with the
-- partition of their day. The courier follows snapshots, not `xid`: a transaction can get it long before it publishes.
CREATE TABLE kingdom.courier_event (
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    stream         text        NOT NULL,
    partition_key  text,
    event_id       uuid        NOT NULL,
    event_type     text        NOT NULL,
    schema_version int         NOT NULL,
    trace_id       text        NOT NULL,
    not_before     timestamptz,
    value          text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (created_at);
CREATE TABLE kingdom.courier_event_default PARTITION OF kingdom.courier_event DEFAULT;
CREATE INDEX courier_event_cursor ON kingdom.courier_event (xid, seq);
CREATE INDEX courier_event_id ON kingdom.courier_event USING brin (event_id) WITH (pages_per_range = 16, autosummarize = on);

-- A tick is all events that are visible in its snapshot and not in that of the tick before, in the order of `seq`.
CREATE TABLE kingdom.courier_tick (
    number   bigint PRIMARY KEY,
    snapshot pg_snapshot NOT NULL
);

-- At most one row: the courier that sends now, and the last tick that it has reported as sent. `store` tells the brokers
-- of two stores apart.
CREATE TABLE kingdom.courier (
    is_only    boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    store      uuid        NOT NULL DEFAULT gen_random_uuid(),
    holder     text        NOT NULL,
    expires_at timestamptz NOT NULL,
    sent       bigint      NOT NULL DEFAULT 0,
    sent_at    timestamptz
);

-- The number of partitions by which the courier chooses the partition of a key. It must not change while events are on
-- their way.
CREATE TABLE kingdom.courier_topic (
    topic      text PRIMARY KEY,
    partitions int NOT NULL CHECK (partitions > 0)
);
