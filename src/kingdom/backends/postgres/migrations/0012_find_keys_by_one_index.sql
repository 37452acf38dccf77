-- Find the open events of a key by the index outbox_line only. Its predicate fits no other index. With the former one, a
-- statement that was planned while its stream was nearly empty could read the whole backlog for each key.
DROP INDEX kingdom.outbox_line;
CREATE INDEX outbox_line ON kingdom.outbox_event (stream, partition_key, id)
 WHERE CASE WHEN ordered THEN processed_at IS NULL END;

-- The same function as before, with the new predicate.
CREATE OR REPLACE FUNCTION kingdom.redrive_position(letter_id bigint, redriven_by text) RETURNS boolean LANGUAGE plpgsql AS $$
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
