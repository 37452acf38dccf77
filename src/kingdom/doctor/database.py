"""Read the facts about a database. This module needs an optional driver, so it is imported only for a database."""

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
from kingdom.doctor.database_facts import SETTINGS, DatabaseFacts
from kingdom.errors import Unavailable
from kingdom.settings import Settings

_CONNECT_SECONDS = 5
_LOST_TRANSACTIONS_SHOWN = timedelta(days=7)


async def read_facts(settings: Settings, clock: Callable[[], datetime]) -> DatabaseFacts:
    """Read all facts over one connection; raise Unavailable if the database does not answer."""
    query = (files(__package__) / "database.sql").read_text(encoding="utf-8")
    try:
        async with (
            server_url(settings.database_url, create=False) as url,
            await psycopg.AsyncConnection.connect(
                url,
                connect_timeout=conninfo_to_dict(url).get("connect_timeout", _CONNECT_SECONDS),
                # A server with the encoding SQL_ASCII would return texts as bytes.
                client_encoding="UTF8",
                prepare_threshold=None,
                row_factory=dict_row,
            ) as connection,
        ):
            # LOCAL keeps the setting within this transaction, because PgBouncer shares the session with other clients.
            await connection.execute("SET LOCAL statement_timeout = 0")
            before = clock()
            cursor = await connection.execute(query, {"settings": list(SETTINGS)})
            row = await cursor.fetchone() or {}
            after = clock()
            row |= await _read_log_facts(connection, settings.schema)
    except psycopg.Error as error:
        raise Unavailable(f"the database does not answer: {error}") from error
    return _to_facts(row, _describe_location(url), before, after)


async def _read_log_facts(connection: psycopg.AsyncConnection[dict[str, Any]], schema: str) -> dict[str, Any]:
    cursor = await connection.execute("SELECT to_regclass(%s) IS NOT NULL AS exists", (f"{schema}.log",))
    if not (await cursor.fetchone() or {}).get("exists"):
        return {"lost_transactions_at": None}
    log = sql.Identifier(schema, "log")
    # The predicate `aggregate_id <> ''` makes the partial index on aggregate_id usable.
    lost = "SELECT max(at) AS lost_transactions_at FROM {log} WHERE aggregate_id = %s AND aggregate_id <> ''"
    query = sql.SQL(lost + " AND at > now() - %s").format(log=log)
    cursor = await connection.execute(query, (LOST_TRANSACTIONS, _LOST_TRANSACTIONS_SHOWN))
    return await cursor.fetchone() or {}


def _to_facts(row: dict[str, Any], location: str, before: datetime, after: datetime) -> DatabaseFacts:
    middle = before + (after - before) / 2
    clocks = {"clock_ahead": row["now"] - middle, "round_trip": after - before}
    return msgspec.convert({**row, **clocks, "location": location}, DatabaseFacts)


def _describe_location(url: str) -> str:
    """Return the name and host of a database, without its password."""
    parts = conninfo_to_dict(url)
    return f"{parts.get('dbname') or 'the database'} on {parts.get('host') or 'this machine'}"
