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
