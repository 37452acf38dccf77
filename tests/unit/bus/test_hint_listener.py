"""A listener waits for hints about the wanted streams, and only about these."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Never

from kingdom.backends.hints import Hints
from kingdom.bus import Delivery
from kingdom.bus.worker.hint_listener import HintListener
from tests.unit.bus.deliveries import delivery
from tests.unit.bus.test_worker import Empty, at_work, until


class Hinted(Empty):
    """A bus whose waits end with a hint."""

    def __init__(self) -> None:
        super().__init__()
        self.hints = Hints()
        self.begun: list[str] = []

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        self.begun += streams
        await self.hints.wait(streams, at_most)


async def test_a_hint_is_reported_once_and_the_other_streams_are_still_waited_for() -> None:
    bus, hinted = Hinted(), list[str]()
    listener = HintListener(bus, hinted.append)
    listener.listen(["a", "b"])
    await until(lambda: bus.begun == ["a", "b"])
    bus.hints.notify(["a"])
    await until(lambda: hinted == ["a"])
    listener.listen(["a", "b"])
    await until(lambda: bus.begun == ["a", "b", "a"])
    bus.hints.notify(["b"])
    await until(lambda: hinted == ["a", "b"])
    await listener.close()


async def test_a_stream_that_is_no_longer_wanted_has_no_waiter_here() -> None:
    bus, hinted = Hinted(), list[str]()
    listener = HintListener(bus, hinted.append)
    listener.listen(["a", "b"])
    await until(lambda: bus.begun == ["a", "b"])
    listener.listen(["b"])
    # Other processes are only informed about streams for which no task waits here.
    await until(lambda: [name for names in bus.hints._waiting.values() for name in names] == ["b"])
    bus.hints.notify(["a"])
    listener.listen(["a", "b"])
    # The hint that came meanwhile is not lost.
    await until(lambda: hinted == ["a"])
    await listener.close()
    assert bus.hints._waiting == {}


async def test_no_wait_is_left_after_the_end() -> None:
    listener = HintListener(Hinted(), list[str]().append)
    listener.listen(["a", "b"])
    await listener.close()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("kingdom-hint")] == []


class Suspicious(Hinted):
    """A bus whose second claim returns a suspect. Its transactions begin when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_handling, self.goes_on = asyncio.Event(), asyncio.Event()

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        await super().claim(stream, limit, worker)
        return [delivery(crash_count=1)] if self.calls["claim"] == 2 else []

    @asynccontextmanager
    async def transaction(self, hold: Sequence[Delivery] = (), *, optimistic: bool = False) -> AsyncIterator[Never]:
        del hold, optimistic
        self.is_handling.set()
        await self.goes_on.wait()
        raise RuntimeError("there is no store")
        yield


async def test_a_worker_that_handles_a_suspect_leaves_hints_to_other_processes() -> None:
    bus = Suspicious()
    async with at_work(bus):
        await until(lambda: bus.begun == ["jobs"])
        await bus.is_handling.wait()
        try:
            await until(lambda: not bus.hints._waiting)
        finally:
            bus.goes_on.set()
