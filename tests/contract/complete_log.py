"""Read the complete log in tests."""

import asyncio
import time
from collections.abc import Callable
from typing import LiteralString

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.backends.postgres.faults import translate_errors
from kingdom.bus import LogCursor, LoggedEntry
from tests.patience import PATIENCE_SECONDS

_OPEN_TRANSACTIONS: LiteralString = """
SELECT pg_snapshot_xmin(snapshot)::text AS oldest, pg_snapshot_xmax(snapshot)::text AS newest
  FROM pg_current_snapshot() AS snapshot
"""


class CompleteLogOperations(PostgresOperations):
    """Waits before each read of the log until no older open transaction hides a part of it."""

    def __init__(self, bus: PostgresBus, keeps_transaction_open: Callable[[], bool] = lambda: False) -> None:
        super().__init__(bus)
        self._keeps_transaction_open = keeps_transaction_open

    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        await self._until_log_is_complete()
        return await super().read_log(after, limit, about)

    async def log_end(self) -> LogCursor:
        await self._until_log_is_complete()
        return await super().log_end()

    async def _until_log_is_complete(self) -> None:
        """Wait for the end of all transactions that started before this call."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        _, newest = await self._open_transactions()
        # A test that keeps a transaction open wants to read the log in this state.
        while not self._keeps_transaction_open():
            oldest, _ = await self._open_transactions()
            if oldest >= newest:
                return
            assert time.monotonic() < deadline, "a transaction does not end, and hides the log"
            await asyncio.sleep(0.01)

    async def _open_transactions(self) -> tuple[int, int]:
        """Return the numbers of the oldest open transaction and of the next transaction to begin."""
        with translate_errors():
            async with self._bus.pool.connection() as connection:
                cursor = await connection.execute(_OPEN_TRANSACTIONS)
                (row,) = await cursor.fetchall()
        return int(row["oldest"]), int(row["newest"])
