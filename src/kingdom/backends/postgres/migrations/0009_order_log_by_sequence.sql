-- Readers follow `seq`, because a transaction can get its number long before it reads what its entries are about.
DROP INDEX kingdom.log_cursor;
CREATE INDEX log_cursor ON kingdom.log (seq);
DROP INDEX kingdom.log_about;
CREATE INDEX log_about ON kingdom.log (aggregate_id, seq) WHERE aggregate_id <> '';

-- Redrive an event, and log who did it. Without a stream, redrive it in every stream in which it is DEAD. Return how
-- many dead letters are PENDING again.
CREATE OR REPLACE FUNCTION kingdom.redrive(event_id uuid, stream text DEFAULT NULL, actor text DEFAULT current_user) RETURNS integer
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
