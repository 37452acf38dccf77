"""Processes that a test starts, stops, continues and kills."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kingdom.backends.files.system.processes import is_stopped
from tests import warm
from tests.contract.backends import BackendUnderTest
from tests.contract.scene import Scene, eventually
from tests.patience import PATIENCE_SECONDS


async def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    await eventually(lambda: all(is_stopped(int(thread.name)) for thread in threads.iterdir()), "it has stopped")


async def stop_unlocked(pid: int, backend: BackendUnderTest) -> None:
    """Stop a process while it does not hold a lock, because the store would kill a stopped holder."""

    async def stopped() -> bool:
        await stop(pid)
        if pid not in backend.holders():
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    await eventually(stopped, "it stops with nothing locked")


class Child:
    """One child process, which reports what it does line by line."""

    def __init__(self, process: warm.Program, backend: BackendUnderTest) -> None:
        self._process = process
        self._backend = backend

    async def read_facts(self) -> dict[str, Any]:
        assert self._process.stdout
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self._process.stdout.readline()
        assert line, "the child has ended"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go_on(self) -> None:
        self._process.write(b"\n")

    async def always_go_on(self) -> None:
        """Continue the process after each report, until cancelled."""
        while True:
            await self.read_facts()
            self.go_on()

    async def stop(self) -> None:
        """Stop the process, and wait until it has stopped."""
        await stop(self._process.pid)

    async def stop_unlocked(self) -> None:
        """Stop the process while it does not hold a lock, because the store would kill a stopped holder."""
        await stop_unlocked(self._process.pid, self._backend)

    def wake(self) -> None:
        """Continue the process, if it was not killed."""
        self._process.send_signal(signal.SIGCONT)

    async def was_fenced_off(self) -> bool:
        """Return whether the store has refused the writes of the process, or has killed it."""
        assert self._process.stdout
        line = await self._process.stdout.readline()
        return not json.loads(line)["published"] if line else await self._process.wait() == -signal.SIGKILL

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def child(scene: Scene, program: str, *details: str) -> AsyncIterator[Child]:
    """Run a program of `tests.contract.child` on the same store during the block."""
    arguments = [scene.backend.name, scene.backend.place, program, *details]
    process = await warm.start("tests.contract.child", *arguments, stdin=True, stdout=True)
    try:
        yield Child(process, scene.backend)
    finally:
        await process.end()
