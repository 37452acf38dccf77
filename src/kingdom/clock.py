"""The only module that reads the wall clock."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(UTC)
