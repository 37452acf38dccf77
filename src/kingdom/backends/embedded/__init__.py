"""A PostgreSQL server in one directory, which Kingdom runs for as long as a process uses it."""
