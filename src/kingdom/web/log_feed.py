"""Reads the log once per process, for any number of clients."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.errors import KingdomError
from kingdom.views.stream import view_logged_entry

PAGE_ENTRIES = 500
_POLL_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_LAG_SECONDS = 15.0
_log = structlog.get_logger("kingdom.web")


class TooSlowError(Exception):
    """Raised for a client whose next entry is no longer in the buffer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A log entry as it is sent: encoded once for all clients."""

    cursor: LogCursor
    kind: str
    text: bytes


class LogFeed:
    """The newest log entries in memory. It reads the store only while it has clients.

    `buffer` is the number of entries that a client may be behind. `on_entry` gets each new entry before any client.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        buffer: int,
        on_entry: Callable[[LogEntry], None],
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._operations = operations
        self._buffer = buffer
        self._on_entry = on_entry
        self._poll_seconds = poll_seconds
        # The frames after `_first`, without a gap.
        self._frames: list[Frame] = []
        self._first = self.position = LogCursor()
        self._changed = asyncio.Event()
        self._clients = 0
        self._reading: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pages: dict[LogCursor, asyncio.Task[list[Frame]]] = {}
        self.lag_seconds = 0.0

    async def join(self) -> None:
        """Add a client. From then on, the entries after `position` are buffered."""
        self._clients += 1
        try:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
            await asyncio.shield(self._opening)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Remove a client. Reading ends with the last client."""
        self._clients -= 1
        if not self._clients:
            await self.stop()

    async def stop(self) -> None:
        """Stop reading."""
        tasks = [task for task in (self._opening, self._reading, *self._pages.values()) if task]
        self._opening = self._reading = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Let every waiting `next` return."""
        self._changed.set()
        self._changed = asyncio.Event()

    def has_buffered(self, after: LogCursor) -> bool:
        """Return whether the entries after a cursor are in the buffer."""
        return self._first <= after <= self.position

    async def next(self, after: LogCursor, wait_seconds: float) -> list[Frame] | None:
        """Return the buffered frames after a cursor, after waiting for the first.

        Return None if none came in time, and an empty list after a `wake`.
        """
        if after >= self.position:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                return None
        if after < self._first:
            raise TooSlowError
        start = bisect_right(self._frames, after, key=lambda frame: frame.cursor)
        return self._frames[start : start + PAGE_ENTRIES]

    async def read_stored(self, after: LogCursor) -> list[Frame]:
        """Read a page from the store. Clients that need the same page at the same time share one read."""
        task = self._pages.get(after)
        if task is None:
            task = self._pages[after] = asyncio.create_task(self._read(after))
            task.add_done_callback(lambda _: self._pages.pop(after, None))
        return await asyncio.shield(task)

    async def keeps_after(self, cursor: LogCursor) -> bool:
        """Return whether the log still has all entries after a cursor."""
        return self.has_buffered(cursor) or await self._operations.keeps_log_after(cursor)

    async def _open(self) -> None:
        try:
            self._first = self.position = await self._operations.log_end()
        except BaseException:
            # The next client tries again, unless one has begun already because this task was cancelled.
            if self._opening is asyncio.current_task():
                self._opening = None
            raise
        self._frames.clear()
        self._reading = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        lag_due = time.monotonic()
        while True:
            try:
                page = await self._operations.read_log(self.position, PAGE_ENTRIES)
                if time.monotonic() >= lag_due:
                    self.lag_seconds = (await self._operations.log_lag()).total_seconds()
                    lag_due = time.monotonic() + _LAG_SECONDS
            except KingdomError as error:
                # Clients keep their connections, and get the entries when the store answers again.
                _log.warning("cannot read the log; trying again", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if page:
                self._add(page)
            if len(page) < PAGE_ENTRIES:
                await asyncio.sleep(self._poll_seconds)

    def _add(self, page: list[LoggedEntry]) -> None:
        for logged in page:
            self._on_entry(logged.entry)
        self._frames += map(encode_frame, page)
        self.position = page[-1].cursor
        if (excess := len(self._frames) - self._buffer) > 0:
            self._first = self._frames[excess - 1].cursor
            del self._frames[:excess]
        self.wake()

    async def _read(self, after: LogCursor) -> list[Frame]:
        return list(map(encode_frame, await self._operations.read_log(after, PAGE_ENTRIES)))


def encode_frame(logged: LoggedEntry) -> Frame:
    """Encode a log entry as a server-sent event."""
    data = msgspec.json.encode(view_logged_entry(logged))
    return Frame(logged.cursor, logged.entry.type, b"id: %s\nevent: entry\ndata: %s\n\n" % (_text(logged.cursor), data))


def encode_position(cursor: LogCursor) -> bytes:
    """Encode a message that only sets the `Last-Event-ID` of the client."""
    return b"id: %s\n\n" % _text(cursor)


def _text(cursor: LogCursor) -> bytes:
    return str(cursor).encode()
