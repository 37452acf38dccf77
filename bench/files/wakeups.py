"""Measure how fast one process wakes another; `python -m bench.files.wakeups bus|bare DIRECTORY [VARIANT]` waits."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
from watchfiles import awatch

from bench.files.bare import Bare, record
from bench.files.figures import WAKE_UP_MULTIPLE, Figures
from bench.files.load import STREAM, some_events
from bench.files.variants import make_bus
from kingdom.backends.files.wakeup import DEBOUNCE_MS, STEP_MS

_PAUSE_SECONDS = 0.03
_PATIENCE = timedelta(seconds=10)
_FIRST_SECONDS = 0.5
_IDLE_SECONDS = 2.0


async def measure_wake_ups(directory: Path, figures: Figures, *, samples: int, variant: str | None) -> None:
    """Wake one process through the bus and another one by a plain file change, in turns, and compare the latencies."""
    script = await record(directory / "recorded", [1] * samples)
    bare = Bare(directory / "bare", script, envelopes=True)
    watched = directory / "watched"
    watched.mkdir()
    bell = watched / "bell"
    bell.touch()
    latencies: dict[str, list[float]] = {"bus": [], "bare": []}

    async with (
        make_bus(directory / "bus") as bus,
        _waiter("bus", directory / "bus", variant) as for_bus,
        _waiter("bare", watched, None) as for_bare,
    ):
        await for_bus.wake_up(lambda: bus.publish(*some_events(1)))
        await for_bare.wake_up(lambda: asyncio.to_thread(os.utime, bell))
        for step in script.steps[:samples]:
            write, (event,) = bare.prepare(step), some_events(1)

            async def publish_by_hand(write: Callable[[], object] = write) -> None:
                write()
                os.utime(bell)

            latencies["bus"].append(await for_bus.latency(partial(bus.publish, event)))
            latencies["bare"].append(await for_bare.latency(publish_by_hand))
        figures.note("processor share of an idle waiter", await for_bus.idle_share())
    bare.close()
    p50 = {who: statistics.median(found) for who, found in latencies.items()}
    figures.note("wake-up p50, ms", p50["bus"] * 1000)
    figures.note("wake-up p50 of a bare watchfiles loop, ms", p50["bare"] * 1000)
    figures.note("wake-up p50, multiple of a bare watchfiles loop", p50["bus"] / p50["bare"], at_most=WAKE_UP_MULTIPLE)


class Waiter:
    """A process that waits for a wake-up, says when it came, and waits again."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def latency(self, act: Callable[[], Awaitable[object]]) -> float:
        """Return the seconds from just before the act until the process woke up."""
        await asyncio.sleep(_PAUSE_SECONDS)
        started = time.monotonic_ns()
        await act()
        while (woken := int(await self.line())) < started:
            pass
        return (woken - started) / 1e9

    async def wake_up(self, act: Callable[[], Awaitable[object]]) -> None:
        """Act until the process wakes up for the first time, because it does not say when it has begun to watch."""
        for _ in range(round(_PATIENCE.total_seconds() / _FIRST_SECONDS)):
            await act()
            with suppress(TimeoutError):
                await self.line(_FIRST_SECONDS)
                return
        raise AssertionError("a waiter never wakes up")

    async def line(self, at_most: float = _PATIENCE.total_seconds()) -> bytes:
        """Return the next output line of the process."""
        assert self._process.stdout
        return await asyncio.wait_for(self._process.stdout.readline(), at_most)

    async def idle_share(self) -> float:
        """Return how much of a processor the process uses while nothing happens."""
        process = psutil.Process(self._process.pid)
        process.cpu_percent()
        await asyncio.sleep(_IDLE_SECONDS)
        return process.cpu_percent() / 100


@asynccontextmanager
async def _waiter(kind: str, directory: Path, variant: str | None) -> AsyncIterator[Waiter]:
    command = [sys.executable, "-m", "bench.files.wakeups", kind, str(directory), *([variant] if variant else [])]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        yield Waiter(process)
    finally:
        process.kill()
        await process.wait()


async def _wait_by_bus(root: Path, variant: str | None) -> None:
    async with make_bus(root, variant) as bus:
        while True:
            await bus.wait([STREAM], _PATIENCE)
            print(time.monotonic_ns(), flush=True)


async def _wait_by_hand(directory: Path) -> None:
    async for _ in awatch(directory, watch_filter=None, step=STEP_MS, debounce=DEBOUNCE_MS, recursive=False):
        print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    _kind, _directory, *_variant = sys.argv[1:]
    if _kind == "bus":
        asyncio.run(_wait_by_bus(Path(_directory), _variant[0] if _variant else None))
    else:
        asyncio.run(_wait_by_hand(Path(_directory)))
