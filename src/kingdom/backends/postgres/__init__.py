"""The backend on PostgreSQL: records, events, leases, dedup keys and the log in one schema."""

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import check_url
from kingdom.backends.postgres.moving import PostgresTransfer
from kingdom.backends.postgres.operations import PostgresOperations
from kingdom.backends.postgres.run_texts import PostgresRunTexts
from kingdom.backends.postgres.schema import migrate, pending_migrations
from kingdom.backends.postgres.trial_store import PostgresTrialStore

__all__ = [
    "PostgresBus",
    "PostgresOperations",
    "PostgresRunTexts",
    "PostgresTransfer",
    "PostgresTrialStore",
    "check_url",
    "migrate",
    "pending_migrations",
]
