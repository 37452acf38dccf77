"""Connections and a pool that notice a lost server and never lose the cancellation of a task."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from psycopg import AsyncConnection, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from kingdom.backends.postgres.queries import PreparedStatement

CONNECT_SECONDS = 5
# A half-open connection must be noticed well before a lease ends. Only tcp_user_timeout is in milliseconds.
_TIMEOUTS: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_Answer = TypeVar("_Answer")


def with_timeouts(dsn: str) -> str:
    """Add timeouts to a conninfo, so that a lost server is noticed. Among several hosts, only the primary is used."""
    given = conninfo_to_dict(dsn)
    several = any("," in str(given.get(name, "")) for name in ("host", "hostaddr"))
    return make_conninfo(**{**_TIMEOUTS, **({"target_session_attrs": "read-write"} if several else {}), **given})


@contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError if the task is cancelled during the block, even if the block ends with another error."""
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
    """A connection on which an error never replaces a cancellation.

    It closes itself when its server has become read-only, because that server is no longer the primary.
    `has_raised_tokens` means that the bus has made new lease tokens higher than all known tokens. The bus does this
    before the first claim on each connection, because a connection may lead to another server after a failover.
    """

    met_read_only = False
    has_raised_tokens = False
    _statements: frozenset[bytes] = frozenset()

    async def execute_alone(self, statement: PreparedStatement, parameters: Mapping[str, str | None]) -> int:
        """Run a statement that commits by itself, and return how many rows it has returned.

        It is prepared and runs without a cursor, which costs this process half as much.
        """
        encoding = self.info.encoding
        texts = map(parameters.__getitem__, statement.parameters)
        values = [None if text is None else text.encode(encoding) for text in texts]
        if statement.name in self._statements:
            try:
                return (await self.wait(self._execute_prepared(statement.name, values))).ntuples
            except errors.InvalidSqlStatementName:
                # After some statements, the driver deallocates everything that is prepared.
                self._statements = frozenset()
        await self.wait(self._prepare(statement))
        self._statements |= {statement.name}
        return (await self.wait(self._execute_prepared(statement.name, values))).ntuples

    def _prepare(self, statement: PreparedStatement) -> PQGen[PGresult]:
        self.pgconn.send_prepare(statement.name, statement.sql)
        return (yield from self._result())

    def _execute_prepared(self, name: bytes, values: list[bytes | None]) -> PQGen[PGresult]:
        self.pgconn.send_query_prepared(name, values)
        return (yield from self._result())

    def _result(self) -> PQGen[PGresult]:
        result: PGresult = (yield from execute(self.pgconn))[-1]
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_from_result(result, self.info.encoding)
        return result

    async def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:  # noqa: ASYNC109 - the signature of the driver
        """Wait like the driver, but keep a cancellation."""
        try:
            with keep_cancellation():
                return await super().wait(gen, interval, timeout)
        except errors.ReadOnlySqlTransaction:
            self.met_read_only = True
            await self.close()
            raise


class Pool(AsyncConnectionPool[Connection]):
    """A pool that keeps cancellations. Before Python 3.12, asyncio loses a cancellation that arrives with a result."""

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - the signature of the pool
        """Take a connection out of the pool. If the caller is cancelled meanwhile, put the connection back."""
        connection = None
        try:
            with keep_cancellation():
                connection = await super().getconn(timeout)
        except asyncio.CancelledError:
            if connection is not None:
                await self.putconn(connection)
            raise
        return connection

    async def putconn(self, conn: Connection) -> None:
        """Put a connection back into the pool. If its server was read-only, replace all connections."""
        await super().putconn(conn)
        if conn.met_read_only:
            await self.drain()

    async def wait(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the signature of the pool
        """Wait until the pool is ready, but keep a cancellation."""
        with keep_cancellation():
            await super().wait(timeout)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
