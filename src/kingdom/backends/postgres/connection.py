"""How the server is reached: connections, and a pool of them, that keep the cancellation of whoever waits for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psycopg import AsyncConnection, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

CONNECT_SECONDS = 5
# A half-open connection must be noticed well before a lease ends.
_PATIENCE: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_Answer = TypeVar("_Answer")


def reaching(dsn: str) -> str:
    """Return a conninfo that notices a lost server, and finds the primary where several hosts are named."""
    given = conninfo_to_dict(dsn)
    several = any("," in str(given.get(name, "")) for name in ("host", "hostaddr"))
    return make_conninfo(**{**_PATIENCE, **({"target_session_attrs": "read-write"} if several else {}), **given})


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
    """A connection on which no error that follows upon a cancellation takes its place.

    It is closed where it met a node that has become read only: that one is not the primary any more. A new one may lead
    to a server that took over, so tokens are lifted by each before it claims.
    """

    met_read_only = False
    has_lifted_tokens = False

    async def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:  # noqa: ASYNC109 - the driver's own
        """Do what the driver does."""
        try:
            with cancellable():
                return await super().wait(gen, interval, timeout)
        except errors.ReadOnlySqlTransaction:
            self.met_read_only = True
            await self.close()
            raise


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

    async def putconn(self, conn: Connection) -> None:
        """Do what the pool does; where one connection met a read-only node, all are made anew."""
        await super().putconn(conn)
        if conn.met_read_only:
            await self.drain()

    async def wait(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the pool's own
        """Do what the pool does."""
        with cancellable():
            await super().wait(timeout)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
