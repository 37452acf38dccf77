"""Make a store look older: its records have ended, and its dedup keys were taken, longer ago."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from tests.contract.backends import BackendUnderTest


@contextmanager
def time_passing(backend: BackendUnderTest, by: timedelta) -> Iterator[None]:
    """Advance the clock of this process, which a store of files uses. In a database, change the stored times."""
    if backend.name == "postgres":
        with psycopg.connect(backend.place, autocommit=True) as connection:
            connection.execute("UPDATE kingdom.record SET ended_at = ended_at - %s WHERE ended_at IS NOT NULL", [by])
            connection.execute("UPDATE kingdom.once_key SET expires_at = expires_at - %s", [by])
        yield
        return
    now = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + by.total_seconds())
        yield
