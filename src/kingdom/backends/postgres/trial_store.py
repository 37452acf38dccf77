"""A store in its own schema, which a verification creates and drops."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from psycopg import AsyncConnection, IsolationLevel, sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.queries import load_queries
from kingdom.backends.postgres.schema import migrate
from kingdom.bus.port import Bus, Transaction
from kingdom.errors import Misconfigured
from kingdom.trial_store import StoredEvent, TrialStore


class PostgresTrialStore(TrialStore):
    """A schema that a verification creates and drops.

    Connections with `url` have the name of the schema as application name. Only these connections are cut.
    """

    has_one_writer = False
    shortest_lease = timedelta(seconds=2)

    def __init__(self, dsn: str, schema: str) -> None:
        self.url = make_conninfo(dsn, application_name=schema)
        self.safe_url = dsn
        self.schema = schema
        self._dsn = dsn
        self._queries = load_queries(schema)

    async def create(self) -> None:
        """See the port."""
        await migrate(self._dsn, self.schema)

    async def drop(self) -> None:
        """See the port."""
        statement = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self.schema))
        async with self._connection() as connection:
            await connection.execute(statement)

    async def cut_connections(self, at_most: int) -> int:
        """See the port."""
        return len(await self._read("cut_connections", application=self.schema, limit=at_most))

    def holders(self) -> list[int]:
        """See the port; no process holds a lock on the whole store."""
        return []

    async def unfinished(self) -> int:
        """See the port."""
        return int((await self._read("count_unfinished"))[0]["events"])

    async def broken_invariants(self) -> list[str]:
        """See the port."""
        return [f"{row['what']}: {row['subject']}" for row in await self._read("broken_invariants")]

    async def events(self) -> list[StoredEvent]:
        """See the port."""
        return [StoredEvent(**row) for row in await self._read("stored_events")]

    async def log_data(self, entry_type: str) -> list[Mapping[str, Any]]:
        """See the port."""
        return [row["data"] for row in await self._read("log_data", type=entry_type)]

    @asynccontextmanager
    async def slow_transaction(self, bus: Bus, *, seconds: float, keep: bool) -> AsyncIterator[Transaction]:
        """See the port."""
        if not isinstance(bus, PostgresBus):
            raise Misconfigured(f"{type(bus).__name__} is not a PostgresBus")
        with translate_errors():
            async with await AsyncConnection.connect(self.url) as connection:
                await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
                async with bus.join(connection) as transaction:
                    yield transaction
                await asyncio.sleep(seconds)
                await (connection.commit() if keep else connection.rollback())

    async def _read(self, name: str, **parameters: object) -> list[DictRow]:
        async with self._connection() as connection:
            cursor = await connection.execute(self._queries[name], parameters)
            return await cursor.fetchall()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        with translate_errors():
            async with await AsyncConnection.connect(self._dsn, autocommit=True, row_factory=dict_row) as connection:
                yield connection
