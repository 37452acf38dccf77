"""Find processes by a mark in their environment, which their children inherit."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

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


def growing_limits() -> Iterator[timedelta]:
    """Yield growing time limits. The test leaves the loop when the hanging program had time to start."""
    for number in range(6):
        yield timedelta(seconds=0.2 * 4**number)
    pytest.fail("the program did not start within any of the time limits")


async def until_runs(mark: str, words: str) -> None:
    """Wait until a marked process runs whose command line begins with these words."""

    async def runs() -> bool:
        return any(command.startswith(words) for command in marked(mark))

    await eventually(runs)


async def cancel_while_it_starts(act: Coroutine[Any, Any, Any], mark: str, words: str) -> None:
    """Cancel a start when its process already runs, but the caller does not know that yet.

    The process has this mark, and its command line begins with these words.
    """
    acting = asyncio.ensure_future(act)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not marked(mark):  # noqa: ASYNC110 - processes send no notification
            await asyncio.sleep(0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Block the event loop on purpose, so that the caller does not learn that the process runs.
    while not any(command.startswith(words) for command in marked(mark)):
        assert time.monotonic() < deadline, marked(mark)
        time.sleep(0.01)  # noqa: ASYNC251
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)


async def until_none(mark: str) -> None:
    """Wait until no marked process is left."""

    async def none() -> bool:
        return not marked(mark)

    await eventually(none)
