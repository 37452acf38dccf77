"""A running soak: processes under load, and figures from the database."""

import contextlib
import signal
import subprocess
import sys
import time
from statistics import fmean
from types import TracebackType
from typing import Any, LiteralString, Self

import psutil
import psycopg
from psycopg.rows import dict_row

from bench.servers import end_process, until
from bench.soak.minutes import Minute

WORKERS = 2
START_SECONDS, DRAIN_SECONDS = 60.0, 120.0
SAMPLES = 12
TABLES = ["outbox_event", "outbox_lease", "outbox_key"]
_SIZES: LiteralString = """
SELECT c.relname AS name, pg_relation_size(c.oid) AS bytes
  FROM pg_class t LEFT JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class c ON c.oid IN (t.oid, i.indexrelid)
 WHERE t.relnamespace = 'kingdom'::regnamespace AND t.relname = ANY(%s)
 GROUP BY c.oid, c.relname, c.relkind ORDER BY c.relkind DESC, c.relname
"""
_ROWS: LiteralString = """
SELECT relname AS name, n_dead_tup AS dead, n_tup_del AS deleted FROM pg_stat_user_tables
 WHERE schemaname = 'kingdom' AND relname = ANY(%s) ORDER BY 1
"""


class Soak:
    """Two workers and a publisher on one database."""

    def __init__(self, dsn: str, server: int | None) -> None:
        self._dsn = dsn
        self._server = psutil.Process(server) if server else None
        self._connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._processes: list[subprocess.Popen[str]] = []
        self._finished = 0
        self._seen_at = 0.0
        self._spent = 0.0

    def __enter__(self) -> Self:
        self._workers = [self._start("worker") for _ in range(WORKERS)]
        self._publisher = self._start("publisher")
        for _ in until(START_SECONDS):
            self._check_alive()
            if self._fetch("SELECT FROM kingdom.outbox_archive LIMIT 1"):
                break
        self._seen_at, self._spent = time.monotonic(), self._server_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.poll() is None:
                end_process(process.pid, signal.SIGTERM)
            process.wait()
        self._connection.close()

    def minute(self, number: int, seconds: float, *, pinned: bool) -> Minute:
        """Let the load run for one minute and measure it."""
        samples: list[dict[str, int]] = []
        with psycopg.connect(self._dsn) as holder:
            if pinned:
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute("SELECT FROM kingdom.outbox_event LIMIT 1")
            for part in range(1, SAMPLES + 1):
                for _ in until(self._seen_at + seconds * part / SAMPLES - time.monotonic()):
                    self._check_alive()
                samples.append({row["name"]: row["bytes"] for row in self._fetch(_SIZES, TABLES)})
            rows = self._fetch(_ROWS, TABLES)
        finished = next(row["deleted"] for row in rows if row["name"] == "outbox_event")
        now, spent = time.monotonic(), self._server_seconds()
        done = max(finished - self._finished, 1)
        rate, cost = done / (now - self._seen_at), (spent - self._spent) * 1e6 / done
        self._finished, self._seen_at, self._spent = finished, now, spent
        return Minute(
            number=number,
            pinned=pinned,
            rate=rate,
            server_microseconds=cost,
            # The size of a table varies between two vacuums, so the mean is compared.
            sizes={name: round(fmean(sample[name] for sample in samples)) for name in samples[0]},
            dead={row["name"]: row["dead"] for row in rows},
        )

    def drain(self) -> tuple[int, int]:
        """Stop publishing, wait for the workers, and return the numbers of published and done events."""
        self._publisher.send_signal(signal.SIGTERM)
        published = int(self._publisher.communicate()[0])
        for _ in until(DRAIN_SECONDS):
            self._check_alive()
            if not self._fetch("SELECT FROM kingdom.outbox_event LIMIT 1"):
                break
        return published, self._fetch("SELECT count(*) AS n FROM kingdom.outbox_archive")[0]["n"]

    def _start(self, role: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.soak.load", role, self._dsn]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    def _server_seconds(self) -> float:
        """Return the processor time of the whole server so far. Unlike elapsed time, it ignores other programs."""
        if self._server is None:
            return 0.0
        own = self._server.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for backend in self._server.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = backend.cpu_times()
                total += times.user + times.system
        return float(total)

    def _check_alive(self) -> None:
        for process in self._workers:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended during the soak with exit code {process.returncode}")

    def _fetch(self, query: LiteralString, *parameters: Any) -> list[dict[str, Any]]:
        return self._connection.execute(query, parameters or None).fetchall()
