"""A listener waits for hints about the wanted streams, and only about these."""

import asyncio
from collections.abc import Collection
from datetime import timedelta

from kingdom.backends.hints import Hints
from kingdom.bus.worker.hint_listener import HintListener
from tests.unit.bus.test_worker import Empty, until


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
