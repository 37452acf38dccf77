"""The client processes of a turn, and their clocks."""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.race.player import Job

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 180


class SideFailedError(RuntimeError):
    """Raised when a process of a side ends with an error, or too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of one process about its work."""

    began: float
    ended: float
    cpu: float
    events: int
    latencies: list[float]


class Client:
    """One process of a side. It starts when this object is constructed."""

    def __init__(self, python: Path, module: str, job: Job) -> None:
        self._what = f"{module}, {job.role}"
        # A file, because a full pipe would stop the process.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(asdict(job))],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._watchdog = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        self._watchdog.start()

    def await_ready(self) -> None:
        """Wait until the process has prepared itself."""
        self._read()

    def start(self) -> None:
        """Let the process begin its work."""
        self._write()

    def report(self) -> Report:
        """Wait until the work is done, and return the report of the process. Its sessions stay open."""
        return Report(**self._read())

    def finish(self) -> None:
        """Let the process close its sessions, and wait for its end."""
        self._write()
        self.await_end()

    def await_end(self) -> None:
        """Wait for the end of the process."""
        if self._process.wait(PATIENCE_SECONDS):
            raise self._failure()

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        # Libraries may print something, too.
        for line in self._process.stdout:
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                return message
        self._process.wait()
        raise self._failure()

    def _write(self) -> None:
        assert self._process.stdin
        # If the process has ended, the next read reports its error output.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def _failure(self) -> SideFailedError:
        self._errors.seek(0)
        words = self._errors.read().strip()[-2000:]
        return SideFailedError(f"{self._what} ended with {self._process.returncode}: {words or 'no message'}")


def _environment() -> dict[str, str]:
    # Without compiled modules on disk, each process would compile all of them again.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


@contextmanager
def started(python: Path, module: str, jobs: Sequence[Job]) -> Iterator[list[Client]]:
    """Yield a process for each job, all ready, and kill at the end what still runs."""
    clients: list[Client] = []
    try:
        clients.extend(Client(python, module, job) for job in jobs)
        for client in clients:
            client.await_ready()
        yield clients
    finally:
        for client in clients:
            client.end()


def run_to_end(python: Path, module: str, job: Job) -> None:
    """Run a process that needs no start, because it only prepares something."""
    client = Client(python, module, job)
    try:
        client.await_end()
    finally:
        client.end()
