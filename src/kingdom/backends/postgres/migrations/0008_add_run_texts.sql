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
