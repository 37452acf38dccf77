"""The content of the database, read without the command line."""

from typing import Any

import psycopg
from psycopg.rows import dict_row


def open_rows(dsn: str) -> list[dict[str, Any]]:
    """Return the rows of the live table: open and dead events."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM kingdom.outbox_event ORDER BY id").fetchall()


def statuses(dsn: str) -> dict[str, str]:
    """Return the status of every event, finished ones too."""
    with psycopg.connect(dsn) as connection:
        return {
            str(event): status
            for event, status in connection.execute("SELECT event_id, status FROM kingdom.outbox_all")
        }
