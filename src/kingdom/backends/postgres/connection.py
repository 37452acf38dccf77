"""Connections, and a pool of them, that do not lose the cancellation of whoever waits for them."""

import asyncio
from typing import TypeVar

from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

_Answer = TypeVar("_Answer")


class Connection(AsyncConnection[DictRow]):
    """A connection whose cancelled caller ends as cancelled, whatever error the statement ends with."""

    async def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:  # noqa: ASYNC109 - the driver's own
        """Do what the driver does; it lets an error that follows upon a cancellation take its place."""
        before = _cancellations()
        try:
            return await super().wait(gen, interval, timeout)
        except Exception:
            if _cancellations() > before:
                raise asyncio.CancelledError from None
            raise


class Pool(AsyncConnectionPool[Connection]):
    """A pool that gives no connection to who was cancelled while waiting in line for it."""

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - the pool's own
        """Do what the pool does; before Python 3.12 it misses a cancellation that comes just with the connection."""
        before = _cancellations()
        connection = await super().getconn(timeout)
        if _cancellations() > before:
            await self.putconn(connection)
            raise asyncio.CancelledError
        return connection


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
