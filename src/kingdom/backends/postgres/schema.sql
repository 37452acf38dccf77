CREATE TABLE kingdom.outbox_event (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id        uuid        NOT NULL,
    stream          text        NOT NULL,
    event_type      text        NOT NULL,
    schema_version  int         NOT NULL DEFAULT 1,
    occurred_at     timestamptz NOT NULL,
    trace_id        text        NOT NULL,
    owner_id        text        NOT NULL DEFAULT '',
    partition_key   text COLLATE "C",
    ordered         boolean     NOT NULL DEFAULT false,
    aggregate_type  text        NOT NULL DEFAULT '',
    aggregate_id    text        NOT NULL DEFAULT '',
    attributes      jsonb       NOT NULL DEFAULT '{}',
    payload_json    jsonb       NOT NULL,
    status          text        NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'DEAD')),
    attempt_count   int         NOT NULL DEFAULT 0,
    max_attempts    int         NOT NULL DEFAULT 10,
    crash_count     int         NOT NULL DEFAULT 0,
    lease_token     bigint      NOT NULL DEFAULT 0,
    cancel_requested boolean    NOT NULL DEFAULT false,
    not_before      timestamptz,
    next_retry_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_attempt_at timestamptz,
    last_error_code text,
    last_error_message text,
    history         jsonb,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at    timestamptz,
    event_id_given  boolean     NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, fillfactor = 45);

-- The predicate uses a column that a claim does not change, so that a claim is a HOT update.
CREATE INDEX outbox_open ON kingdom.outbox_event (stream, next_retry_at, id) WHERE processed_at IS NULL;
CREATE UNIQUE INDEX outbox_once ON kingdom.outbox_event (event_id, stream);
CREATE INDEX outbox_line ON kingdom.outbox_event (stream, partition_key, id)
 WHERE CASE WHEN ordered THEN processed_at IS NULL END;
CREATE INDEX outbox_dead ON kingdom.outbox_event (stream, id) WHERE processed_at IS NOT NULL;

-- A token is a number of this sequence with 11 random low bits. The numbers stay above the time since 1970 in units of
-- 1/1,024 s. So a server that has lost transactions assigns no token again, and no token below a lost one. A token has
-- at most 53 bits, because it may be sent as a number in JSON.
CREATE SEQUENCE kingdom.outbox_lease_number;

-- expires_at has no index, so that a renewal is a HOT update.
CREATE TABLE kingdom.outbox_lease (
    token      bigint PRIMARY KEY
               DEFAULT (nextval('kingdom.outbox_lease_number') << 11) + floor(random() * 2048)::bigint,
    worker     text        NOT NULL,
    ids        bigint[]    NOT NULL,
    cancelled  bigint[]    NOT NULL DEFAULT '{}',
    expires_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

ALTER SEQUENCE kingdom.outbox_lease_number OWNED BY kingdom.outbox_lease.token;

-- A row exists while its key has open events or is blocked by a DEAD event. `rewind` is the lowest redriven event that
-- waits until no event of the key is in flight. `turn` is 0 until an operator locks the row for the first time.
CREATE TABLE kingdom.outbox_key (
    stream        text   NOT NULL,
    partition_key text COLLATE "C" NOT NULL,
    turn          bigint NOT NULL DEFAULT 0,
    blocked_by    bigint,
    rewind        bigint,
    PRIMARY KEY (stream, partition_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE TABLE kingdom.outbox_pause (
    stream text PRIMARY KEY,
    reason text        NOT NULL,
    actor  text        NOT NULL,
    since  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE kingdom.outbox_archive (
    id              bigint      NOT NULL,
    event_id        uuid        NOT NULL,
    stream          text        NOT NULL,
    event_type      text        NOT NULL,
    schema_version  int         NOT NULL,
    occurred_at     timestamptz NOT NULL,
    trace_id        text        NOT NULL,
    owner_id        text        NOT NULL,
    partition_key   text,
    ordered         boolean     NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    attributes      jsonb       NOT NULL,
    payload_json    jsonb       NOT NULL,
    status          text        NOT NULL DEFAULT 'DONE' CHECK (status IN ('DONE', 'DISCARDED')),
    attempt_count   int         NOT NULL,
    max_attempts    int         NOT NULL,
    crash_count     int         NOT NULL,
    lease_token     bigint      NOT NULL,
    last_attempt_at timestamptz,
    last_error_code text,
    last_error_message text,
    history         jsonb,
    created_at      timestamptz NOT NULL,
    processed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    event_id_given  boolean     NOT NULL DEFAULT false
) PARTITION BY RANGE (processed_at);
CREATE TABLE kingdom.outbox_archive_default PARTITION OF kingdom.outbox_archive DEFAULT;
-- UUIDv7 ids arrive nearly sorted, so a BRIN index finds an event and costs almost nothing to maintain.
CREATE INDEX outbox_archive_event ON kingdom.outbox_archive USING brin (event_id) WITH (pages_per_range = 16, autosummarize = on);
-- This index contains only ids that publishers chose. Such ids may be random, and may be published again.
CREATE INDEX outbox_archive_given ON kingdom.outbox_archive (event_id, stream) WHERE event_id_given;

CREATE TABLE kingdom.once_key (
    scope      text        NOT NULL,
    key        text        NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX once_key_expiry ON kingdom.once_key (expires_at);

-- `owner`, `index_2` and `index_3` have the values of a record in the indexes that its kind names.
CREATE TABLE kingdom.record (
    kind       text        NOT NULL,
    id         text COLLATE "C" NOT NULL,
    version    bigint      NOT NULL,
    state      text        NOT NULL,
    owner      text,
    due_at     timestamptz,
    doc        jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    index_2    text,
    index_3    text,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 70);
CREATE INDEX record_state ON kingdom.record (kind, state, id);
CREATE INDEX record_owner ON kingdom.record (kind, owner, id) WHERE owner IS NOT NULL;
CREATE INDEX record_index_2 ON kingdom.record (kind, index_2, id) WHERE index_2 IS NOT NULL;
CREATE INDEX record_index_3 ON kingdom.record (kind, index_3, id) WHERE index_3 IS NOT NULL;
CREATE INDEX record_due ON kingdom.record (kind, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX record_ended ON kingdom.record (kind, ended_at) WHERE ended_at IS NOT NULL;

-- Transactions do not commit in the order of `seq`. So readers follow `seq`, and stay below the numbers of open
-- transactions. They do not follow `xid`: a transaction can get it long before it reads what its entries are about.
CREATE TABLE kingdom.log (
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    at             timestamptz NOT NULL,
    type           text        NOT NULL,
    actor          text        NOT NULL,
    trace_id       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    data           jsonb       NOT NULL,
    logged_at      timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (logged_at);
CREATE TABLE kingdom.log_default PARTITION OF kingdom.log DEFAULT;
CREATE INDEX log_cursor ON kingdom.log (seq);
CREATE INDEX log_about ON kingdom.log (aggregate_id, seq) WHERE aggregate_id <> '';

-- Transcripts and diffs that hosts copy for readers on other machines. Rows are only inserted, and leave with the
-- partition of their day. `content` is compressed by the writer. A piece is the bytes from `start` to `stop` of a text.
CREATE TABLE kingdom.run_text (
    run        text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    start      bigint      NOT NULL,
    stop       bigint      NOT NULL CHECK (stop > start),
    is_cut     boolean     NOT NULL,
    content    bytea       NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (written_at);
CREATE TABLE kingdom.run_text_default PARTITION OF kingdom.run_text DEFAULT;
CREATE INDEX run_text_end ON kingdom.run_text (run, name, stop);

-- Events of streams with a transport. The courier sends them from here. Rows are only inserted, and leave with the
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

-- At most one row: the courier that sends now, and the last tick that it has reported as sent. `store` is the id of this
-- store: a courier refuses topics that belong to another store.
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

-- How far the consumer of a stream has come in a partition of its topic. `handled` has the offsets of all events that are
-- settled here or moved to the outbox. A new owner of the partition raises `epoch`, so an earlier owner can write nothing
-- more. `takeovers` counts the owners since the last settled event.
CREATE TABLE kingdom.inbox_partition (
    stream    text NOT NULL,
    topic     text NOT NULL,
    partition int NOT NULL,
    epoch     bigint NOT NULL,
    handled   int8multirange NOT NULL,
    takeovers int NOT NULL DEFAULT 0,
    PRIMARY KEY (stream, topic, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE VIEW kingdom.outbox_all AS
SELECT e.id, e.event_id, e.stream, e.event_type, e.schema_version, e.occurred_at, e.trace_id, e.owner_id,
       e.partition_key, e.aggregate_type, e.aggregate_id, e.attributes, e.payload_json, e.status, e.attempt_count,
       e.max_attempts, e.crash_count, nullif(e.next_retry_at, 'infinity') AS next_retry_at, e.last_attempt_at,
       l.worker AS locked_by, l.expires_at AS locked_until, e.last_error_code, e.last_error_message, e.history,
       e.created_at, e.updated_at, e.processed_at
  FROM kingdom.outbox_event e
  LEFT JOIN kingdom.outbox_lease l ON l.token = e.lease_token AND e.status = 'PROCESSING'
UNION ALL
SELECT a.id, a.event_id, a.stream, a.event_type, a.schema_version, a.occurred_at, a.trace_id, a.owner_id,
       a.partition_key, a.aggregate_type, a.aggregate_id, a.attributes, a.payload_json, a.status, a.attempt_count,
       a.max_attempts, a.crash_count, NULL, a.last_attempt_at,
       NULL, NULL, a.last_error_code, a.last_error_message, a.history,
       a.created_at, a.processed_at, a.processed_at
  FROM kingdom.outbox_archive a;

-- Make a dead letter PENDING again at its old position, with zero attempts and its history. In an ordered stream it
-- becomes the head of its key, or comes right after the run in flight, or waits for the letter that blocks its key.
-- Return false if the event is not a dead letter.
CREATE FUNCTION kingdom.redrive_position(letter_id bigint, redriven_by text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    letter     record;
    key_turn   bigint;
    blocker_id bigint;
    first_id   bigint;
BEGIN
    -- This takes no lock, because key rows are always locked before event rows.
    SELECT stream, partition_key, ordered INTO letter FROM kingdom.outbox_event WHERE id = letter_id AND status = 'DEAD';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF letter.ordered THEN
        INSERT INTO kingdom.outbox_key AS q (stream, partition_key) VALUES (letter.stream, letter.partition_key)
        ON CONFLICT (stream, partition_key) DO UPDATE SET turn = q.turn + 1 RETURNING turn, q.blocked_by
        INTO key_turn, blocker_id;
    END IF;
    UPDATE kingdom.outbox_event
       SET status = 'PENDING', processed_at = NULL, attempt_count = 0, crash_count = 0, cancel_requested = false,
           updated_at = now(),
           next_retry_at = CASE WHEN ordered THEN 'infinity' ELSE clock_timestamp() END,
           last_error_code = NULL, last_error_message = NULL,
           history = coalesce(history, '[]') || jsonb_build_object('what', 'redriven', 'at', now(),
             'actor', redriven_by, 'attempts', attempt_count, 'crashes', crash_count, 'died_at', processed_at,
             'code', last_error_code, 'message', last_error_message)
     WHERE id = letter_id AND status = 'DEAD';
    IF NOT FOUND THEN
        -- Another operator was faster. The row of the key is new if the key has no open events any more.
        DELETE FROM kingdom.outbox_key
         WHERE letter.ordered AND stream = letter.stream AND partition_key = letter.partition_key AND turn = 0;
        RETURN false;
    END IF;
    IF NOT letter.ordered OR (key_turn > 0 AND blocker_id <> letter_id) THEN
        RETURN true;
    END IF;
    SELECT id INTO first_id FROM kingdom.outbox_event
     WHERE stream = letter.stream AND partition_key = letter.partition_key AND CASE WHEN ordered THEN processed_at IS NULL END
     ORDER BY id LIMIT 1;
    IF key_turn = 0 OR blocker_id = letter_id THEN
        UPDATE kingdom.outbox_key SET rewind = NULL, blocked_by = NULL
         WHERE stream = letter.stream AND partition_key = letter.partition_key;
    ELSE
        IF first_id = letter_id THEN
            -- The head waits like its followers, unless it is in flight.
            UPDATE kingdom.outbox_event SET next_retry_at = 'infinity'
             WHERE status = 'PENDING' AND id = (
               SELECT id FROM kingdom.outbox_event
                WHERE stream = letter.stream AND partition_key = letter.partition_key
                  AND CASE WHEN ordered THEN processed_at IS NULL END AND next_retry_at < 'infinity' ORDER BY id LIMIT 1);
        END IF;
        IF first_id <> letter_id OR NOT FOUND THEN
            first_id := NULL;
        END IF;
        -- A run in flight may already be past this position. Its settlement then makes this event the next head.
        UPDATE kingdom.outbox_key SET rewind = least(rewind, letter_id)
         WHERE stream = letter.stream AND partition_key = letter.partition_key;
    END IF;
    UPDATE kingdom.outbox_event
       SET next_retry_at = greatest(clock_timestamp(), not_before), updated_at = clock_timestamp()
     WHERE id = first_id AND next_retry_at = 'infinity';
    RETURN true;
END $$;

-- Redrive an event, and log who did it. Without a stream, redrive it in every stream in which it is DEAD. Return how
-- many dead letters are PENDING again.
CREATE FUNCTION kingdom.redrive(event_id uuid, stream text DEFAULT NULL, actor text DEFAULT current_user) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    letter   record;
    redriven integer := 0;
BEGIN
    FOR letter IN
        SELECT e.id, e.stream FROM kingdom.outbox_event e
         WHERE e.event_id = redrive.event_id AND e.status = 'DEAD' AND e.stream = coalesce(redrive.stream, e.stream)
         ORDER BY e.stream
    LOOP
        CONTINUE WHEN NOT kingdom.redrive_position(letter.id, redrive.actor);
        -- The fragment `announce` says what this lock announces.
        PERFORM pg_advisory_xact_lock_shared(7106407, mod(last_value - (NOT is_called)::int, 2147483648)::int)
           FROM kingdom.log_seq_seq;
        INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
        VALUES (clock_timestamp(), 'dead_letter.redriven', redrive.actor, replace(gen_random_uuid()::text, '-', ''),
                '', '', jsonb_build_object('event_id', redrive.event_id, 'stream', letter.stream));
        redriven := redriven + 1;
    END LOOP;
    IF redriven = 0 THEN
        RAISE NOTICE 'event % is not a dead letter%', redrive.event_id, coalesce(' of the stream ' || redrive.stream, '')
        USING HINT = 'SELECT event_id, stream, last_error_message FROM kingdom.outbox_event WHERE status = ''DEAD''';
    END IF;
    RETURN redriven;
END $$;
