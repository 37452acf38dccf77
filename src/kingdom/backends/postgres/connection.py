"""Connections and a pool that notice a lost server and never lose the cancellation of a task."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

from psycopg import AsyncConnection, abc, errors
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch, send
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from kingdom.backends.postgres.queries import numbered
from kingdom.backends.postgres.values import to_parameter
from kingdom.errors import Transient

# A statement and its parameters.
Call = tuple[LiteralString, Mapping[str, Any]]
_COMMIT: Call = ("COMMIT", {})
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


class Rows:
    """The rows that a statement has returned. They are converted only if they are read."""

    def __init__(self, result: PGresult, transformer: abc.Transformer) -> None:
        self._result = result
        self._transformer = transformer
        # What the server has done, such as "COMMIT".
        self.command = (result.command_status or b"").decode()

    def __len__(self) -> int:
        return self._result.ntuples

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples."""
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_rows(0, len(self), tuple)

    def dicts(self) -> list[DictRow]:
        """Return the rows by the names of their columns."""
        names = [(self._result.fname(column) or b"").decode() for column in range(self._result.nfields)]
        return [dict(zip(names, row, strict=True)) for row in self.tuples()]


class Connection(AsyncConnection[DictRow]):
    """A connection on which an error never replaces a cancellation.

    It closes itself when its server has become read-only, because that server is no longer the primary.
    `has_raised_tokens` means that the bus has made new lease tokens higher than all known tokens. The bus does this
    before the first claim on each connection, because a connection may lead to another server after a failover.
    """

    met_read_only = False
    has_raised_tokens = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transformer: abc.Transformer | None = None
        # The names of the statements that are prepared, by their text.
        self._names: dict[bytes, bytes] = {}
        self._numbers = itertools.count()

    async def run(self, *calls: Call) -> list[Rows]:
        """Run statements in one round trip. After an error the server skips the others, and the first error is raised.

        Cursors and pipelines of the driver do the same, but they cost this process two to ten times as much.
        """
        was_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        try:
            return await self._run(calls)
        except errors.InvalidSqlStatementName:
            # After some statements, the driver deallocates everything that is prepared.
            self._names.clear()
            if not was_idle:
                raise
        await self.roll_back()
        return await self._run(calls)

    async def run_and_commit(self, *calls: Call) -> list[Rows]:
        """Run the last statements of a transaction and commit it, in one round trip."""
        *found, end = await self.run(*calls, _COMMIT)
        if end.command != "COMMIT":
            raise Transient("a statement of this transaction failed, so the database has rolled it back")
        return found

    async def fetch(self, *calls: Call) -> list[list[DictRow]]:
        """Run statements in one round trip, and return the rows of each."""
        return [rows.dicts() for rows in await self.run(*calls)]

    async def roll_back(self) -> None:
        """Roll back an open transaction. Unlike `rollback` of the driver, this keeps what is prepared."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            await self.wait(self._send([(None, b"ROLLBACK", [])]))

    async def _run(self, calls: Sequence[Call]) -> list[Rows]:
        encoding, bound = self.info.encoding, []
        for sql, parameters in calls:
            text, names = numbered(sql)
            values = [to_parameter(parameters[name]) for name in names]
            prepared = await self._prepare(text) if self.prepare_threshold is not None else None
            bound.append((prepared, text, [None if value is None else value.encode(encoding) for value in values]))
        if self._transformer is None:
            self._transformer = Transformer(self)
        return [Rows(result, self._transformer) for result in await self.wait(self._send(bound))]

    async def _prepare(self, text: bytes) -> bytes:
        if text not in self._names:
            name = b"kingdom_%d" % next(self._numbers)
            await self.wait(self._send_prepare(name, text))
            self._names[text] = name
        return self._names[text]

    def _send_prepare(self, name: bytes, text: bytes) -> PQGen[None]:
        self.pgconn.send_prepare(name, text)
        _check((yield from execute(self.pgconn)), self.info.encoding)

    def _send(self, bound: Sequence["tuple[bytes | None, bytes, list[bytes | None]]"]) -> PQGen[list[PGresult]]:
        pgconn = self.pgconn
        if len(bound) > 1:
            pgconn.enter_pipeline_mode()
        for name, text, values in bound:
            if name is None:
                pgconn.send_query_params(text, values)
            else:
                pgconn.send_query_prepared(name, values)
        if len(bound) > 1:
            pgconn.pipeline_sync()
            results = yield from _pipeline_results(pgconn)
            pgconn.exit_pipeline_mode()
        else:
            results = yield from execute(pgconn)
        _check(results, self.info.encoding)
        return results

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


class JoinedConnection:
    """The connection of a caller, who may use it in any mode, inside the caller's own transaction."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.cursor = connection.cursor

    async def fetch(self, *calls: Call) -> list[list[DictRow]]:
        """Run statements one after another, and return the rows of each."""
        found = []
        for sql, parameters in calls:
            cursor = await self.cursor(row_factory=dict_row).execute(sql, parameters)
            found.append(await cursor.fetchall() if cursor.description else [])
        return found


def _pipeline_results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Send what is queued, and collect the results of all statements until the end of the pipeline."""
    yield from send(pgconn)
    results: list[PGresult] = []
    while True:
        result = yield from fetch(pgconn)
        # Between the results of two statements there is nothing.
        if result is None:
            continue
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _check(results: Sequence[PGresult], encoding: str) -> None:
    """Raise the first error."""
    for result in results:
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_from_result(result, encoding)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
