"""Send and receive wake-ups by NOTIFY. A lost wake-up only costs time.

A commit with a NOTIFY waits for all other such commits of the server. So a wake-up has a transaction of its own, which
does not wait for the disk. Unless another wake-up went out a moment ago, a publish sends its wake-up in the round trip
that publishes the events, which is cheaper and earlier.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

import structlog
from psycopg.rows import dict_row

from kingdom.backends.hints import Hints
from kingdom.backends.postgres.connection import Connection

# A publish sends its hints itself if no hint was sent for this time.
_COALESCE_SECONDS = 0.01
# After this time, hints that no publish has sent are sent alone.
_SEND_ALONE_SECONDS = 0.015
_RECONNECT_SECONDS = 1.0
# Closing does not wait longer than this for the last hint.
_LAST_HINT_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class PostgresWakeups:
    """Wakes waiting workers of this and other processes when a stream may have work."""

    def __init__(self, channel: str, send: Callable[[list[str]], Awaitable[None]], listen_dsn: str | None) -> None:
        self.channel = channel
        self._send = send
        self._listen_dsn = listen_dsn
        self._unsent: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._hints = Hints()
        self._sent_at = -math.inf

    def take_hints(self, streams: Collection[str], *, events: int) -> set[str]:
        """Return the streams for which the caller must send a hint, in the round trip that publishes to them.

        These hints count as sent from now on, so a hint that another publish has left for the same stream is not sent
        again.
        """
        now = time.monotonic()
        if now - self._sent_at < _COALESCE_SECONDS:
            return set()
        if taken := self._streams_to_announce(streams, events):
            self._sent_at = now
            self._unsent -= taken
        return taken

    def wake_workers(
        self, streams: Collection[str], *, events: int | None = None, sent: Collection[str] = frozenset()
    ) -> None:
        """Wake the workers of this process now, and those of other processes within milliseconds.

        The hints for the streams in `sent` are already sent.
        """
        if not streams:
            return
        self._unsent |= self._streams_to_announce(streams, events).difference(sent)
        self._hints.notify(streams)
        if self._unsent and (self._sender is None or self._sender.done()):
            self._sender = asyncio.create_task(self._send_soon(), name="kingdom-notify")

    def _streams_to_announce(self, streams: Collection[str], events: int | None) -> set[str]:
        """Return the streams whose workers in other processes should wake up.

        A single event needs no other process if a worker of this process waits for it, or waited a moment ago.
        """
        return self._hints.without_waiter(streams) if events == 1 else set(streams)

    def wake_own_workers(self, streams: Collection[str]) -> None:
        """End the current wait for these streams, or else the next: a claim or settlement may have left due events."""
        if streams:
            self._hints.notify(streams)

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint for one of the streams, but no longer than `at_most`."""
        if self._listen_dsn and self._listener is None:
            self._listener = asyncio.create_task(self._listen(self._listen_dsn), name="kingdom-listen")
        await self._hints.wait(streams, at_most)

    async def close(self) -> None:
        """Send the remaining hints if the server answers, and stop listening."""
        if self._sender:
            # asyncio.wait does not cancel the sender if this call is cancelled.
            _, late = await asyncio.wait({self._sender}, timeout=_LAST_HINT_SECONDS)
            if late:
                self._unsent.clear()
                self._sender.cancel()
                await asyncio.wait(late)
        if self._listener:
            self._listener.cancel()
            await asyncio.wait({self._listener})

    async def _send_soon(self) -> None:
        """Send hints: the first at once, later ones together, unless a publish sends them."""
        while self._unsent:
            streams, self._unsent = sorted(self._unsent), set()
            self._sent_at = time.monotonic()
            try:
                await self._send(streams)
            except Exception as error:  # noqa: BLE001 - a lost hint costs one polling period, never an event
                _log.debug("wake-up not sent", streams=streams, error=str(error))
            while (rest := self._sent_at + _SEND_ALONE_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - a timer
                await asyncio.sleep(rest)

    async def _listen(self, dsn: str) -> None:
        while True:
            try:
                connection = await Connection.connect(dsn, autocommit=True, row_factory=dict_row)
                async with connection:
                    await connection.execute(f'LISTEN "{self.channel}"')
                    # Hints that were sent before this LISTEN are lost, so wake all workers once.
                    self._hints.notify_all()
                    async for stream in connection.notices():
                        self._hints.notify([stream])
            except Exception as error:  # noqa: BLE001 - after any error, listening must be tried again
                _log.warning("wake-ups interrupted; workers poll meanwhile", error=str(error))
                await asyncio.sleep(_RECONNECT_SECONDS)
