"""Hints that a stream may have work: who waits for which, and what came while nobody waited."""

import asyncio
from collections.abc import Collection
from datetime import timedelta


class Hints:
    """Wakes the waiters of one process; a hint is never the truth, only a reason to look."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._missed: set[str] = set()

    def give(self, streams: Collection[str]) -> None:
        """Wake whoever waits for one of these streams."""
        for event, wanted in self._waiting.items():
            if not wanted.isdisjoint(streams):
                event.set()
        # A hint that comes while its worker is claiming is kept: that claim may have been too early.
        self._missed |= set(streams).difference(*self._waiting.values())

    def give_all(self) -> None:
        """Wake everybody, as after a gap in which hints may have been lost."""
        for event in self._waiting:
            event.set()

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Return at a hint for one of the streams, or after `at_most`."""
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
        finally:
            del self._waiting[event]
