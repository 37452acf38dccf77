"""The backend on PostgreSQL: records, events, leases, dedup keys and the log in one schema."""

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import check_url
from kingdom.backends.postgres.moving import PostgresMovable
from kingdom.backends.postgres.operations import PostgresOperations
from kingdom.backends.postgres.schema import migrate, pending_migrations
from kingdom.backends.postgres.throwaway import PostgresThrowaway

__all__ = [
    "PostgresBus",
    "PostgresMovable",
    "PostgresOperations",
    "PostgresThrowaway",
    "check_url",
    "migrate",
    "pending_migrations",
]
