"""Renew leases on a connection of their own, from a thread that the event loop cannot delay."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import LiteralString, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.abc import PQGen
from psycopg.rows import DictRow, dict_row

from kingdom.backends.postgres.faults import translate_errors
from kingdom.bus.port import LeaseRenewal

_ANSWER_SECONDS = 5.0
# A renewal that waits for a lock must fail before its lease expires. The time is in milliseconds.
_TIMEOUT: LiteralString = "SET statement_timeout = 2000"
_Answer = TypeVar("_Answer")


class LeaseRenewals:
    """Renews leases, and keeps the connection for it. `settings` are statements for a new session."""

    def __init__(
        self,
        dsn: str,
        queries: Mapping[str, LiteralString],
        settings: Sequence[LiteralString],
        *,
        through_pgbouncer: bool,
    ) -> None:
        self._dsn = dsn
        self._queries = queries
        self._settings = settings
        self._through_pgbouncer = through_pgbouncer
        self._connection: psycopg.Connection[DictRow] | None = None
        self._lock = threading.Lock()

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases; see `Bus.renew`."""
        lengths: dict[timedelta, list[int]] = defaultdict(list)
        for token, length in leases.items():
            lengths[length].append(token)
        alive: set[int] = set()
        cancelled: set[int] = set()
        with self._lock, translate_errors(), self._open_connection() as connection:
            for length, tokens in lengths.items():
                with connection.transaction() if self._through_pgbouncer else nullcontext():
                    rows = connection.execute(self._queries["renew"], {"tokens": tokens, "lease": length}).fetchall()
                alive |= {row["token"] for row in rows}
                cancelled.update(*(row["cancelled"] for row in rows))
        return LeaseRenewal(frozenset(alive), frozenset(cancelled))

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _open_connection(self) -> Iterator[psycopg.Connection[DictRow]]:
        """Yield the connection. After an error, the next renewal opens a new one."""
        try:
            yield self._connect()
        except psycopg.Error:
            if self._connection:
                self._connection.close()
            raise

    def _connect(self) -> psycopg.Connection[DictRow]:
        if self._connection is None or self._connection.closed:
            self._connection = _ImpatientConnection.connect(
                self._dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=None if self._through_pgbouncer else 1,
            )
            self._configure(self._connection)
        return self._connection

    def _configure(self, connection: psycopg.Connection[DictRow]) -> None:
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        for setting in () if self._through_pgbouncer else (*self._settings, _TIMEOUT):
            connection.execute(setting)


class _ImpatientConnection(psycopg.Connection[DictRow]):
    """A connection with a short timeout for every answer."""

    def wait(self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None) -> _Answer:
        """Wait like the driver, but not longer than a renewal may take."""
        return super().wait(gen, interval, timeout or _ANSWER_SECONDS)
