"""Connections, and a pool of them, that keep the cancellation of whoever waits for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

_Answer = TypeVar("_Answer")


@contextmanager
def cancellable() -> Iterator[None]:
    """End in the cancellation that came during the block, even if an error or an answer has taken its place."""
    before = _cancellations()
    try:
        yield
    except Exception:
        if _cancellations() > before:
            raise asyncio.CancelledError from None
        raise
    if _cancellations() > before:
        raise asyncio.CancelledError


class Connection(AsyncConnection[DictRow]):
    """A connection on which no error that follows upon a cancellation takes its place."""

    async def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:  # noqa: ASYNC109 - the driver's own
        """Do what the driver does."""
        with cancellable():
            return await super().wait(gen, interval, timeout)


class Pool(AsyncConnectionPool[Connection]):
    """A pool that keeps a cancellation which comes just with what was waited for: before Python 3.12 it misses that."""

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - the pool's own
        """Do what the pool does; a connection that came too late for who was cancelled goes back."""
        connection = None
        try:
            with cancellable():
                connection = await super().getconn(timeout)
        except asyncio.CancelledError:
            if connection is not None:
                await self.putconn(connection)
            raise
        return connection

    async def wait(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the pool's own
        """Do what the pool does."""
        with cancellable():
            await super().wait(timeout)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
