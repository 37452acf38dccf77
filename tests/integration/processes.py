"""Real child processes for tests that stop, kill or outlast a worker."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests import warm
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS


def say(*words: object) -> None:
    """Print a line for the parent process."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Child:
    """A process that reports its progress line by line on its standard output."""

    def __init__(self, process: warm.Program) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def wait_for_line(self, line: str) -> None:
        """Wait until the process has printed a line."""

        async def is_printed() -> bool:
            assert line in self.lines or self.process.returncode is None, f"the process ended: {self.lines}"
            return line in self.lines

        await eventually(is_printed)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE_SECONDS)

    async def end(self) -> None:
        """Kill the process, even a stopped one, and read its output to the end."""
        self.process.kill()
        await self.process.wait()
        await self._reader
        await self.process.end()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip())


@asynccontextmanager
async def child(module: str, *arguments: str, **options: Any) -> AsyncIterator[Child]:
    """Run `python -m tests.<module>` with arguments and, last, its options as JSON."""
    running = Child(await warm.start(f"tests.{module}", *arguments, json.dumps(options), stdout=True))
    try:
        await running.wait_for_line("ready")
        yield running
    finally:
        await running.end()
