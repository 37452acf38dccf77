"""One reader reads the log for all clients, also while a client that came first is still leaving."""

import asyncio
from datetime import timedelta
from typing import Any, cast

from kingdom.bus import LogCursor, LoggedEntry, Operations
from kingdom.web.log_feed import LogFeed


class SlowLog:
    """A log whose end is found when a test says so. A cancelled search also ends only then."""

    def __init__(self) -> None:
        self.searches: list[asyncio.Event] = []
        self.searched = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.is_read = asyncio.Event()
        self.readers: set[asyncio.Task[Any] | None] = set()

    async def log_end(self) -> LogCursor:
        may_end = asyncio.Event()
        self.searches.append(may_end)
        self.searched.set()
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            await may_end.wait()
            raise
        return LogCursor()

    async def read_log(self, _after: LogCursor, _limit: int) -> list[LoggedEntry]:
        self.readers.add(asyncio.current_task())
        self.is_read.set()
        return []

    async def log_lag(self) -> timedelta:
        return timedelta()


async def test_a_client_that_leaves_while_the_log_is_opened_does_not_start_a_second_reader() -> None:
    log = SlowLog()
    feed = LogFeed(cast("Operations", log), buffer=10, on_entry=lambda _: None, poll_seconds=0)
    first = asyncio.create_task(feed.join())
    await log.searched.wait()
    first.cancel()
    await log.cancelled.wait()
    log.searched.clear()
    second = asyncio.create_task(feed.join())
    await log.searched.wait()
    log.searches[0].set()
    await asyncio.wait([first])
    third = asyncio.create_task(feed.join())
    for _ in range(3):
        await asyncio.sleep(0)
    for search in log.searches:
        search.set()
    await asyncio.gather(second, third)
    await log.is_read.wait()
    assert len(log.searches) == 2
    assert len(log.readers) == 1
    await feed.leave()
    await feed.leave()
    (reader,) = log.readers
    assert reader
    assert reader.done()
