"""One transaction over the tables of the pipeline and the bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from examples.trading.settings import Settings
from examples.trading.streams import topology
from kingdom import bus
from kingdom.backends.postgres import PostgresBus

KINDS = [bus.EFFECTS, bus.RecordKind(name="backtest", directories={"completed": "backtests/completed"})]
_SCHEMA = Path(__file__).with_name("schema.sql")


@dataclass(frozen=True, slots=True)
class TradeTransaction:
    """Rows and events that are committed together."""

    connection: AsyncConnection[DictRow]
    events: bus.Transaction

    async def rows(self, sql: LiteralString, **values: Any) -> list[DictRow]:
        """Execute a statement and return its rows."""
        cursor = await self.connection.execute(sql, values)
        return await cursor.fetchall() if cursor.description else []

    async def row(self, sql: LiteralString, **values: Any) -> DictRow | None:
        """Execute a statement and return its first row."""
        return next(iter(await self.rows(sql, **values)), None)


class TradeStore:
    """The tables of the pipeline and its bus."""

    def __init__(self, settings: Settings, my_bus: PostgresBus, pool: AsyncConnectionPool[Any]) -> None:
        self.settings = settings
        self.bus = my_bus
        self._pool = pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TradeTransaction]:
        """Commit rows and events together, then wake the workers of the streams."""
        async with self._pool.connection() as connection:
            async with connection.transaction(), self.bus.join(connection) as events:
                yield TradeTransaction(connection, events)
            self.bus.nudge({copy.stream.name for copy in events.changes.copies.values()})


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[TradeStore]:
    """Open the bus, and a pool of connections for the tables."""
    declared = topology(settings.lease)
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        settings.database_url,
        kwargs={"row_factory": dict_row},
        min_size=1,
        max_size=16,
        timeout=10,
        # After a restart of the server, a broken connection is replaced instead of failing a trade.
        check=AsyncConnectionPool.check_connection,
        reconnect_timeout=5,
        reconnect_failed=AsyncConnectionPool.check,
        open=False,
    )
    async with PostgresBus(settings.database_url, declared, KINDS, connections=20) as my_bus, pool:
        yield TradeStore(settings, my_bus, pool)


async def create_tables(database_url: str) -> None:
    """Create the tables. `kingdom bus migrate` creates those of the bus."""
    async with await AsyncConnection.connect(database_url) as connection:
        await connection.execute(_SCHEMA.read_bytes())
