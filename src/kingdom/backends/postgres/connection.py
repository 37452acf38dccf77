"""Connections that notice a lost server and never lose the cancellation of a task."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, LiteralString, TypeVar

from psycopg import AsyncConnection, abc, errors
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import error_from_result
from psycopg.generators import send
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import DictRow, dict_row

from kingdom.backends.postgres.queries import numbered
from kingdom.backends.postgres.values import to_parameter
from kingdom.errors import Transient

# A statement and its parameters.
Call = tuple[LiteralString, Mapping[str, Any]]
# The name of a prepared statement, or None, its text, and the values of its parameters.
_Bound = tuple[bytes | None, bytes, list[bytes | None]]
_COMMIT: Call = ("COMMIT", {})
_SUCCESSES = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
# The SQLSTATE of `errors.InvalidSqlStatementName`.
_DEALLOCATED = b"26000"
CONNECT_SECONDS = 5
# How long the server may take to end the statements of a cancelled task.
_CANCEL_SECONDS = 5.0
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


class KeptCancellation:
    """Raises CancelledError if the task is cancelled during a block, even if the block ends with another error."""

    def __enter__(self) -> None:
        self._before = _cancellations()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if _cancellations() > self._before and (error is None or isinstance(error, Exception)):
            raise asyncio.CancelledError from None


class Rows:
    """The rows that a statement has returned. They are converted only if they are read."""

    def __init__(self, result: PGresult, transformer: abc.Transformer) -> None:
        self._result = result
        self._transformer = transformer

    @property
    def command(self) -> bytes | None:
        """Return the command that the server has executed, such as COMMIT."""
        return self._result.command_status

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
    # The pool may keep the connection at hand until this time, by the monotonic clock.
    at_hand_until = -math.inf

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transformer: abc.Transformer | None = None
        # The socket that the event loop watches, and the future of a task that waits for an answer from there.
        self._watched: int | None = None
        self._answer: asyncio.Future[None] | None = None
        # How many results that end a transaction of a pipeline are still to come; 0 outside of a pipeline.
        self._syncs = 0
        # The names of the statements that are prepared, by their text.
        self._names: dict[bytes, bytes] = {}
        self._numbers = itertools.count()

    async def run(self, *calls: Call, commit_each: bool = False) -> list[Rows]:
        """Run statements in one round trip. After an error the server skips the others, and the first error is raised.

        With `commit_each`, each statement commits by itself, and an error skips no other. Cursors and pipelines of the
        driver do the same, but they cost this process two to ten times as much.
        """
        was_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        results = await self._run(calls, commit_each=commit_each)
        if any(_is_deallocated(result) for result in results):
            # After some statements, the driver deallocates everything that is prepared.
            self._names.clear()
            if was_idle:
                await self.roll_back()
                await self._run_again(calls, results, commit_each=commit_each)
        await self._require_success(results)
        if self._transformer is None:
            self._transformer = Transformer(self)
        return [Rows(result, self._transformer) for result in results]

    async def run_and_commit(self, *calls: Call) -> list[Rows]:
        """Run the last statements of a transaction and commit it, in one round trip."""
        *found, end = await self.run(*calls, _COMMIT)
        if end.command != b"COMMIT":
            raise Transient("a statement of this transaction failed, so the database has rolled it back")
        return found

    async def fetch(self, *calls: Call) -> list[list[DictRow]]:
        """Run statements in one round trip, and return the rows of each."""
        return [rows.dicts() for rows in await self.run(*calls)]

    async def notices(self) -> AsyncIterator[str]:
        """Yield the texts of notifications. Unlike `notifies` of the driver, this does not wake up without one."""
        while True:
            while notice := self.pgconn.notifies():
                yield notice.extra.decode()
            await self._wait_for_answer()

    async def roll_back(self) -> None:
        """Roll back an open transaction. Unlike `rollback` of the driver, this keeps what is prepared."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            await self._require_success(await self._exchange([(None, b"ROLLBACK", [])]))

    async def _run(self, calls: Sequence[Call], *, commit_each: bool) -> list[PGresult]:
        bound: list[_Bound] = []
        for sql, parameters in calls:
            text, names = numbered(sql)
            values = [to_parameter(parameters[name]) for name in names]
            bound.append((await self._prepare(text) if self.prepare_threshold is not None else None, text, values))
        return await self._exchange(bound, commit_each=commit_each)

    async def _run_again(self, calls: Sequence[Call], results: list[PGresult], *, commit_each: bool) -> None:
        """Run statements again and replace their results. With `commit_each`, the others have already committed."""
        again = [n for n, result in enumerate(results) if _is_deallocated(result) or not commit_each]
        found = await self._run([calls[n] for n in again], commit_each=commit_each)
        for n, result in zip(again, found, strict=False):
            results[n] = result

    async def _prepare(self, text: bytes) -> bytes:
        name = self._names.get(text)
        if name is None:
            name = b"kingdom_%d" % next(self._numbers)
            await self._require_success(await self._round_trip(partial(self.pgconn.send_prepare, name, text)))
            self._names[text] = name
        return name

    async def _exchange(self, bound: Sequence[_Bound], *, commit_each: bool = False) -> list[PGresult]:
        """Send statements, and return the result of each."""
        return await self._round_trip(partial(self._send, bound, commit_each=commit_each))

    def _send(self, bound: Sequence[_Bound], *, commit_each: bool) -> None:
        pgconn = self.pgconn
        if len(bound) > 1:
            pgconn.enter_pipeline_mode()
            self._syncs = len(bound) if commit_each else 1
        for name, text, values in bound:
            if name is None:
                pgconn.send_query_params(text, values)
            else:
                pgconn.send_query_prepared(name, values)
            if self._syncs > 1:
                pgconn.pipeline_sync()
        if self._syncs == 1:
            pgconn.pipeline_sync()

    async def _round_trip(self, send_all: Callable[[], None]) -> list[PGresult]:
        """Send statements, and return the results of all of them, also of those that failed."""
        try:
            send_all()
            if self.pgconn.flush():
                await self.wait(send(self.pgconn))
            return await self._receive()
        except asyncio.CancelledError:
            await self._abandon()
            raise
        finally:
            if self.pgconn.status != ConnStatus.OK:
                # libpq has closed the socket, so another connection may soon have the same file descriptor.
                self._unwatch()

    async def _require_success(self, results: Sequence[PGresult]) -> None:
        """Raise the first error among the results."""
        for result in results:
            if result.status not in _SUCCESSES:
                error = error_from_result(result)
                if isinstance(error, errors.ReadOnlySqlTransaction):
                    await self._leave_read_only()
                raise error

    async def _receive(self) -> list[PGresult]:
        pgconn, results = self.pgconn, list[PGresult]()
        while True:
            while pgconn.is_busy():
                await self._wait_for_answer()
            result = pgconn.get_result()
            if result is None:
                if not self._syncs:
                    return results
                # In a pipeline, this separates the results of two statements, unless the connection is lost.
                if pgconn.status != ConnStatus.OK:
                    raise errors.OperationalError(pgconn.get_error_message())
            elif result.status == ExecStatus.PIPELINE_SYNC:
                self._syncs -= 1
                if not self._syncs:
                    pgconn.exit_pipeline_mode()
                    return results
            else:
                results.append(result)

    async def _abandon(self) -> None:
        """Cancel the statements that run, and read their results. If that fails, close the connection."""
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self.cancel_safe(timeout=_CANCEL_SECONDS)
                await self._receive()
        except (TimeoutError, errors.Error):
            await self.close()

    async def _wait_for_answer(self) -> None:
        """Wait until a result is complete. The loop keeps watching the socket, since adding it again costs more."""
        loop = asyncio.get_running_loop()
        if self._watched is None:
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._read)
        self._answer = loop.create_future()
        try:
            await self._answer
        finally:
            self._answer = None

    def _read(self) -> None:
        """Read what the server has sent."""
        answer = self._answer
        if answer is None or answer.done():
            # No task waits. If the server has closed the connection, the next use of the connection will notice that.
            self._unwatch()
            return
        try:
            self.pgconn.consume_input()
        except errors.Error as error:
            # libpq has closed the socket.
            self._unwatch()
            answer.set_exception(error)
        else:
            if not self.pgconn.is_busy():
                answer.set_result(None)

    def _unwatch(self) -> None:
        """Stop watching the socket. Call this before the socket is closed, and before the driver waits for it."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    async def _leave_read_only(self) -> None:
        self.met_read_only = True
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._unwatch()
        await super().close()

    async def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:  # noqa: ASYNC109 - the signature of the driver
        """Wait like the driver, but keep a cancellation."""
        self._unwatch()
        try:
            with KeptCancellation():
                return await super().wait(gen, interval, timeout)
        except errors.ReadOnlySqlTransaction:
            await self._leave_read_only()
            raise


class JoinedConnection:
    """The connection of a caller, inside the caller's own transaction. Any mode of the driver is allowed."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.cursor = connection.cursor

    async def fetch(self, *calls: Call) -> list[list[DictRow]]:
        """Run statements one after another, and return the rows of each."""
        found = []
        for sql, parameters in calls:
            cursor = await self.cursor(row_factory=dict_row).execute(sql, parameters)
            found.append(await cursor.fetchall() if cursor.description else [])
        return found


def _is_deallocated(result: PGresult) -> bool:
    """Return whether a statement did not run because the server no longer has it prepared."""
    return result.status not in _SUCCESSES and result.error_field(DiagnosticField.SQLSTATE) == _DEALLOCATED


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
