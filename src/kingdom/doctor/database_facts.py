"""The facts about a database that the checks judge."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

SETTINGS = (
    "autovacuum",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "max_connections",
    "reserved_connections",
    "statement_timeout",
    "superuser_reserved_connections",
    "synchronous_commit",
    "synchronous_standby_names",
    "transaction_timeout",
)


class OldestTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest open transaction of another session."""

    pid: int
    role: str | None
    state: str | None
    seconds: float


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The version, settings and limits of a server.

    `clock_ahead` is how far its clock is ahead of this machine's, with an error of at most half of `round_trip`.
    `lost_transactions_at` is when a worker last found that the server had lost a confirmed transaction.
    `settings` are the values that a new session gets. Settings that this version of the server lacks are left out.
    """

    location: str
    version: int
    version_text: str
    role: str
    database: str
    encoding: str
    is_standby: bool
    role_limit: int
    database_limit: int
    settings: Mapping[str, str]
    connection_count: int
    standby_count: int
    oldest_transaction: OldestTransaction | None
    lost_transactions_at: datetime | None
    clock_ahead: timedelta
    round_trip: timedelta

    def number(self, setting: str) -> int:
        """Return a numeric setting, or 0 if the server does not know it."""
        return int(self.settings.get(setting, "0"))
