"""Run a PostgreSQL server with all its files in one directory, as long as any process uses it."""
