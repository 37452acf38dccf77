"""How long a test waits for what must happen: a bound for a machine that others use too, never a pace."""

PATIENCE_SECONDS = 300.0
