"""How long a test waits for an expected event: long enough for a busy machine. No test measures by it."""

PATIENCE_SECONDS = 300.0
