"""A PostgreSQL server of our own in one directory, which runs for as long as somebody uses it."""
