"""The journal: one line per committed transaction."""
