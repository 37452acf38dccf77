"""How long a test waits for an expected event: long enough for a busy machine, and therefore no measure of speed."""

PATIENCE_SECONDS = 300.0
