"""Wait for hints that streams have due events."""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta

import structlog

from kingdom.bus.cancellation import fail_on_stray_cancellation
from kingdom.bus.port import Bus

# The worker polls by itself, so the length of a wait does not matter.
_LONGEST_WAIT = timedelta(hours=1)
_PAUSE_SECONDS = 1.0
_log = structlog.get_logger("kingdom.bus")


class HintListener:
    """Waits for hints about streams, and calls `on_hint` with each hinted stream.

    Each stream has a task that stays until its hint comes. Creating tasks for every claim would delay the claim, and
    with many streams it would take longer than handling the events.
    """

    def __init__(self, bus: Bus, on_hint: Callable[[str], None]) -> None:
        self._bus = bus
        self._on_hint = on_hint
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Tasks that were cancelled and may not have ended.
        self._ending: set[asyncio.Task[None]] = set()

    def listen(self, streams: Collection[str]) -> None:
        """Wait for hints about these streams only, so that the bus tells other processes about all other streams."""
        for stream in self._tasks.keys() - set(streams):
            self._end(stream)
        for stream in streams:
            if stream not in self._tasks:
                self._tasks[stream] = asyncio.create_task(self._wait(stream), name=f"kingdom-hint-{stream}")

    async def close(self) -> None:
        """End all waits."""
        self.listen(())
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, stream: str) -> None:
        task = self._tasks.pop(stream)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _wait(self, stream: str) -> None:
        try:
            with fail_on_stray_cancellation("a wait for hints"):
                await self._bus.wait([stream], _LONGEST_WAIT)
        except Exception as error:  # noqa: BLE001 - a lost hint costs one polling period
            _log.warning("cannot wait for hints, trying again", stream=stream, error=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
        if self._tasks.get(stream) is asyncio.current_task():
            del self._tasks[stream]
        self._on_hint(stream)
