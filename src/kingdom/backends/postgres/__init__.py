"""PostgreSQL as the truth: records, events, leases, dedup keys and the log in one database."""

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.operations import PostgresOperations
from kingdom.backends.postgres.schema import migrate, pending_migrations
from kingdom.backends.postgres.throwaway import PostgresThrowaway

__all__ = ["PostgresBus", "PostgresOperations", "PostgresThrowaway", "migrate", "pending_migrations"]
