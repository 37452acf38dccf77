"""Hints that a stream may have work, and the waiters for them."""

import asyncio
import math
import time
from collections.abc import Collection
from datetime import timedelta

# A task that waited for a stream so recently is probably looking at it, and gets a missed hint when it waits again.
_RECENT_SECONDS = 0.1


class Hints:
    """Wakes the tasks of this process that wait for work. After a hint, the task must still look at the stream."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._missed: set[str] = set()
        self._waited_at: dict[str, float] = {}

    def notify(self, streams: Collection[str]) -> None:
        """Wake the waiters for these streams."""
        for event, wanted in self._waiting.items():
            if not wanted.isdisjoint(streams):
                event.set()
        # Keep a hint for which no task waits: a worker may be claiming just now, too early to see the event.
        self._missed |= set(streams).difference(*self._waiting.values())

    def without_waiter(self, streams: Collection[str]) -> set[str]:
        """Return the streams for which no task of this process waits now or has waited a moment ago."""
        alone = set(streams).difference(*self._waiting.values())
        recent = time.monotonic() - _RECENT_SECONDS
        return {stream for stream in alone if self._waited_at.get(stream, -math.inf) < recent}

    def notify_all(self) -> None:
        """Wake all waiters, because hints may have been lost."""
        for event in self._waiting:
            event.set()

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint for one of the streams, or for `at_most`."""
        if not self._missed.isdisjoint(streams):
            self._missed.difference_update(streams)
            return
        event = asyncio.Event()
        self._waiting[event] = frozenset(streams)
        try:
            async with asyncio.timeout(at_most.total_seconds()):
                await event.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # The hint may have come just before the cancellation.
            self._missed |= set(streams) if event.is_set() else set()
            raise
        finally:
            del self._waiting[event]
            self._waited_at |= dict.fromkeys(streams, time.monotonic())
