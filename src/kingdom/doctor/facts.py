"""What a database tells about itself."""

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


class Oldest(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction of somebody else that is open for the longest time."""

    pid: int
    role: str | None
    state: str | None
    seconds: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Its version, settings and limits; `ahead` is by how much its clock is ahead of ours, give or take half `took`.

    `hidden_entries` are those of the log with the number of a transaction that has not begun on this server.
    `lost_transactions_at` is when a worker last found that the server had lost what it had confirmed.

    Only settings that the server knows are there; those of sessions and roles count, as for the roles of the court.
    """

    where: str
    version: int
    version_words: str
    role: str
    database: str
    encoding: str
    is_standby: bool
    role_limit: int
    database_limit: int
    settings: Mapping[str, str]
    connected: int
    standbys: int
    oldest: Oldest | None
    hidden_entries: int
    lost_transactions_at: datetime | None
    ahead: timedelta
    took: timedelta

    def number(self, setting: str) -> int:
        """Return a setting that is a number, 0 where the server does not know it."""
        return int(self.settings.get(setting, "0"))
