"""The processes of a trial: the exchange, the push service, the workers and the feeder of signals."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.rows import DictRow, dict_row

from bench.servers import LOOPBACK, PATIENCE_SECONDS, free_port
from bench.trading.evidence import AUDIT, Evidence, read_evidence
from examples.trading.settings import Settings
from examples.trading.store import create_tables

AS_IT_IS = "as_it_is"
EXCHANGE, PUSH, FEEDER = "exchange", "push", "feeder"
_LOOK_EVERY_SECONDS = 0.2


class Scene:
    """Starts, kills and restarts processes, each with its output in a file."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        variant: str = AS_IT_IS,
        seed: int = 0,
        answer_seconds: float = 1.0,
        late_seconds: float = 3.0,
        sent_limit_seconds: float = 8.0,
    ) -> None:
        self.url = url
        self.directory = directory
        self._variant = variant
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        ports = {EXCHANGE: free_port(), PUSH: free_port()}
        self._ports = ports
        self.environment = {
            "DATABASE_URL": url,
            "EXCHANGE_URL": f"http://{LOOPBACK}:{ports[EXCHANGE]}",
            "PUSH_URL": f"http://{LOOPBACK}:{ports[PUSH]}",
            "EXCHANGE_CALLS_PER_SECOND": "200",
            "ANSWER_SECONDS": str(answer_seconds),
            "LOOKUP_AFTER_SECONDS": "0.5",
            "SENT_LIMIT_SECONDS": str(sent_limit_seconds),
            "UNKNOWN_LIMIT_SECONDS": "1.5",
            "LEASE_SECONDS": "4",
        }
        self._commands[EXCHANGE] = _stand_in("exchange", "--book", directory, ports[EXCHANGE], seed)
        self._commands[EXCHANGE] += ["--fill-seconds", "0.5", "--late-seconds", str(late_seconds)]
        self._commands[PUSH] = _stand_in("push_service", "--log", directory, ports[PUSH], seed)

    @property
    def settings(self) -> Settings:
        """Return the settings that the processes have."""
        known = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            return Settings.read()
        finally:
            for name, value in known.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    async def open(self, workers: Mapping[str, Sequence[str]]) -> None:
        """Create the tables with their audit, and start everything but the feeder."""
        await create_tables(self.url)
        await self.execute(AUDIT)
        for name, roles in workers.items():
            self._commands[name] = self._process("work", *roles)
        for name in (EXCHANGE, PUSH, *workers):
            self.start(name)
        for name in (EXCHANGE, PUSH, *workers):
            await self.until_ready(name)

    def feed(self, count: int, per_second: float) -> None:
        """Start the process that records signals, or start it again from its first signal."""
        self._commands[FEEDER] = self._process("feed", str(count), str(per_second))
        self.start(FEEDER)

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a process, or None while it runs."""
        return self._running[name].poll()

    def start(self, name: str) -> None:
        """Start a process. Its output is appended to its file."""
        with self._output(name).open("ab") as output:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                cwd=Path(__file__).parents[2],
                env={**os.environ, **self.environment, "TRADING_SCENE": str(self.directory)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    async def until_ready(self, name: str) -> None:
        """Wait until a process works."""
        port = self._ports.get(name)

        def is_ready() -> bool:
            if self._running[name].poll() is not None:
                raise RuntimeError(f"{name} does not start:\n{self.output(name)[-2000:]}")
            if port is None:
                return "working: " in self.output(name)
            with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
                return True
            return False

        await until(is_ready)

    def kill(self, name: str) -> None:
        """Kill a process."""
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait(PATIENCE_SECONDS)

    def stop(self, name: str) -> None:
        """Stop a process until `resume`."""
        self._running[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a stopped process continue."""
        self._running[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill everything."""
        for process in self._running.values():
            process.kill()
            process.wait(PATIENCE_SECONDS)

    def output(self, name: str) -> str:
        """Return what a process has printed."""
        path = self._output(name)
        return path.read_text(errors="replace") if path.exists() else ""

    async def set_faults(self, name: str, **faults: Any) -> None:
        """Make the exchange or the push service misbehave, or heal it."""
        url = f"http://{LOOPBACK}:{self._ports[name]}/faults"
        request = urllib.request.Request(url, data=json.dumps(faults).encode(), method="PUT")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close())  # noqa: S310 - loopback

    async def execute(self, sql: LiteralString) -> list[DictRow]:
        """Execute a statement and return its rows."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            cursor = await connection.execute(sql)
            return await cursor.fetchall() if cursor.description else []

    async def evidence(self) -> Evidence:
        """Return what the tables, the book and the push service show."""
        return await read_evidence(self.url, self.directory)

    def _process(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "bench.trading.process", self._variant, *words]

    def _output(self, name: str) -> Path:
        return self.directory / f"{name}.log"


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


def _stand_in(module: str, place: str, directory: Path, port: int, seed: int) -> list[str]:
    words = [place, str(directory), "--port", str(port), "--seed", str(seed)]
    return [sys.executable, "-m", f"examples.trading.{module}", *words]
