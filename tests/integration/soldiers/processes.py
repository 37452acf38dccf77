"""Finding processes by a mark in their environment, which everything they start inherits, and stopping one."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from kingdom.backends.files.lock import is_stopped
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

MARK = "KINGDOM_TEST_MARK"


def marked(mark: str) -> list[str]:
    """Return the command lines of all living processes that carry a mark."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if sought in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode())
    return found


async def until_runs(mark: str, words: str) -> None:
    """Wait until a marked process runs whose command line begins with these words."""

    async def runs() -> bool:
        return any(command.startswith(words) for command in marked(mark))

    await eventually(runs)


async def until_none(mark: str) -> None:
    """Wait until no marked process is left."""

    async def none() -> bool:
        return not marked(mark)

    await eventually(none)


async def stop_unlocked(pid: int, holders: Callable[[], Collection[int]]) -> None:
    """Stop a process at a moment at which it is none of the holders of a store, which would kill it for that."""

    async def stands_still() -> bool:
        return all(is_stopped(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir())

    async def holds_nothing() -> bool:
        return pid not in holders()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            os.kill(pid, signal.SIGSTOP)
            await eventually(stands_still)
            if await holds_nothing():
                return
            os.kill(pid, signal.SIGCONT)
            await eventually(holds_nothing)
