"""Asking a database about itself; loaded only where there is one, since its driver is an extra."""

from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from kingdom.bootstrap import server_url
from kingdom.bus.log import LOST_TRANSACTIONS
from kingdom.doctor.facts import SETTINGS, Facts
from kingdom.errors import Unavailable
from kingdom.settings import Settings

_CONNECT_SECONDS = 5
_RECENTLY = timedelta(days=7)


async def ask(settings: Settings, clock: Callable[[], datetime]) -> Facts:
    """Ask the database everything at once; raises Unavailable where it does not answer."""
    query = (files(__package__) / "database.sql").read_text(encoding="utf-8")
    try:
        async with (
            server_url(settings.database_url, create=False) as url,
            await psycopg.AsyncConnection.connect(
                url,
                connect_timeout=conninfo_to_dict(url).get("connect_timeout", _CONNECT_SECONDS),
                # Where the server knows no encoding, texts would come as bytes.
                client_encoding="UTF8",
                prepare_threshold=None,
                row_factory=dict_row,
            ) as connection,
        ):
            # For this transaction only: behind PgBouncer the session is not ours.
            await connection.execute("SET LOCAL statement_timeout = 0")
            before = clock()
            cursor = await connection.execute(query, {"settings": list(SETTINGS)})
            row = await cursor.fetchone() or {}
            after = clock()
            row |= await _log_facts(connection, settings.schema)
    except psycopg.Error as error:
        raise Unavailable(f"the database does not answer: {error}") from error
    return _facts(row, _place_of(url), before, after)


async def _log_facts(connection: psycopg.AsyncConnection[dict[str, Any]], schema: str) -> dict[str, Any]:
    cursor = await connection.execute("SELECT to_regclass(%s) IS NOT NULL AS exists", (f"{schema}.log",))
    if not (await cursor.fetchone() or {}).get("exists"):
        return {"hidden_entries": 0, "lost_transactions_at": None}
    log = sql.Identifier(schema, "log")
    hidden = "(SELECT count(*) FROM {log} WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())) AS hidden_entries"
    lost = "(SELECT max(at) FROM {log} WHERE aggregate_id = %s AND aggregate_id <> '' AND at > now() - %s)"
    query = sql.SQL(f"SELECT {hidden}, {lost} AS lost_transactions_at").format(log=log)
    cursor = await connection.execute(query, (LOST_TRANSACTIONS, _RECENTLY))
    return await cursor.fetchone() or {}


def _facts(row: dict[str, Any], where: str, before: datetime, after: datetime) -> Facts:
    middle = before + (after - before) / 2
    return msgspec.convert({**row, "where": where, "ahead": row["now"] - middle, "took": after - before}, Facts)


def _place_of(url: str) -> str:
    """Return where a database is, without its password."""
    parts = conninfo_to_dict(url)
    return f"{parts.get('dbname') or 'the database'} on {parts.get('host') or 'this machine'}"
