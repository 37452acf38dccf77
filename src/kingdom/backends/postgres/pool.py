"""The pool of connections."""

import asyncio
import time
from contextlib import suppress

from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from kingdom.backends.postgres.connection import Connection, KeptCancellation

_AT_HAND_SECONDS = 1.0


class Pool(AsyncConnectionPool[Connection]):
    """A pool that keeps cancellations. Before Python 3.12, asyncio loses a cancellation that arrives with a result.

    One connection that was just used stays at hand for the next caller, so that a publish costs this process a fifth
    less. A connection that was taken out of the pool more than `_AT_HAND_SECONDS` ago goes back there after its use,
    because only the pool replaces old connections.
    """

    _at_hand: Connection | None = None
    # How many callers wait for a connection of the pool.
    _requests = 0

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - the signature of the pool
        """Take a connection out of the pool. If the caller is cancelled meanwhile, put the connection back."""
        connection, self._at_hand = self._at_hand, None
        if connection is not None:
            return connection
        self._requests += 1
        try:
            with KeptCancellation():
                connection = await super().getconn(timeout)
        except asyncio.CancelledError:
            if connection is not None:
                await self.putconn(connection)
            raise
        finally:
            self._requests -= 1
        connection.at_hand_until = time.monotonic() + _AT_HAND_SECONDS
        return connection

    async def putconn(self, conn: Connection) -> None:
        """Put a connection back. If its server was read-only, replace all connections."""
        if self._may_stay_at_hand(conn):
            self._at_hand = conn
            return
        await super().putconn(conn)
        if conn.met_read_only:
            await self.drain()

    async def take_back(self, connection: Connection) -> None:
        """Roll back what is open on a connection, and put it back. The blocks of the driver cost twice as much."""
        try:
            with suppress(errors.Error):
                await connection.roll_back()
        finally:
            # A second cancellation may interrupt the rollback. The pool then closes the connection.
            await self.putconn(connection)

    def _may_stay_at_hand(self, conn: Connection) -> bool:
        return (
            self._at_hand is None
            and not self._requests
            and not self.closed
            and conn.pgconn.transaction_status == TransactionStatus.IDLE
            and time.monotonic() < conn.at_hand_until
        )

    async def check(self) -> None:
        """Replace the broken connections among those that are not in use."""
        await self._put_back()
        await super().check()

    async def drain(self) -> None:
        """Replace all connections."""
        await self._put_back()
        await super().drain()

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - the signature of the pool
        """Close all connections."""
        await super().close(timeout)
        # The pool is closed now, so it closes each connection that comes back.
        await self._put_back()

    async def _put_back(self) -> None:
        connection, self._at_hand = self._at_hand, None
        if connection is not None:
            await super().putconn(connection)

    async def wait(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the signature of the pool
        """Wait until the pool is ready, but keep a cancellation."""
        with KeptCancellation():
            await super().wait(timeout)
