"""Make the content of a store older, because a test cannot change the clock of a store."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from tests.contract.backends import BackendUnderTest


def age_record(backend: BackendUnderTest, kind: str, record_id: str, ended: timedelta) -> None:
    """Set the end of a record to this long ago. No bus may be open on a store of files."""
    if backend.name == "files":
        (path,) = Path(backend.place).rglob(f"{record_id}.json")
        document = json.loads(path.read_text())
        document["_kingdom"]["endedAt"] = (datetime.now(UTC) - ended).isoformat()
        path.write_text(json.dumps(document))
        return
    with psycopg.connect(backend.place, autocommit=True) as connection:
        cursor = connection.execute(
            "UPDATE kingdom.record SET ended_at = now() - %s WHERE kind = %s AND id = %s AND ended_at IS NOT NULL",
            (ended, kind, record_id),
        )
        assert cursor.rowcount == 1


def age_key(backend: BackendUnderTest, scope: str, key: str, by: timedelta) -> None:
    """Make a dedup key older by this time."""
    if backend.name == "files":
        path = Path(backend.place, "state", "sentinel", scope, key)
        taken_at = path.stat().st_mtime - by.total_seconds()
        os.utime(path, (taken_at, taken_at))
        return
    with psycopg.connect(backend.place, autocommit=True) as connection:
        cursor = connection.execute(
            "UPDATE kingdom.once_key SET expires_at = expires_at - %s WHERE scope = %s AND key = %s", (by, scope, key)
        )
        assert cursor.rowcount == 1
