"""Wake-ups by NOTIFY: coalesced off the write path, and only ever a hint beside polling."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

import structlog
from psycopg.rows import dict_row

from kingdom.backends.hints import Hints
from kingdom.backends.postgres.connection import Connection

_COALESCE_SECONDS = 0.01
_RECONNECT_SECONDS = 1.0
# A hint that cannot be sent in this time is not worth keeping a process alive for.
_LAST_HINT_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class Wakeups:
    """Tells waiting workers, here and elsewhere, that a stream may have work."""

    def __init__(self, channel: str, send: Callable[[list[str]], Awaitable[None]], listen_dsn: str | None) -> None:
        self.channel = channel
        self._send = send
        self._listen_dsn = listen_dsn
        self._unsent: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._hints = Hints()

    def published(self, streams: Collection[str]) -> None:
        """Wake waiters of this process now and all others within milliseconds."""
        if not streams:
            return
        self._hints.notify(streams)
        self._unsent |= set(streams)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_soon(), name="kingdom-notify")

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Return at a hint for one of the streams, or after `at_most`."""
        if self._listen_dsn and self._listener is None:
            self._listener = asyncio.create_task(self._listen(self._listen_dsn), name="kingdom-listen")
        await self._hints.wait(streams, at_most)

    async def close(self) -> None:
        """Send what is unsent, if the server answers, and stop listening."""
        if self._sender:
            # Who is cancelled here must not cancel it, for whoever closes next.
            _, late = await asyncio.wait({self._sender}, timeout=_LAST_HINT_SECONDS)
            if late:
                self._unsent.clear()
                self._sender.cancel()
                await asyncio.wait(late)
        if self._listener:
            self._listener.cancel()
            await asyncio.wait({self._listener})

    async def _send_soon(self) -> None:
        # The first hint goes out at once; what is published soon after it goes out with the next.
        while self._unsent:
            streams, self._unsent = sorted(self._unsent), set()
            try:
                await self._send(streams)
            except Exception as error:  # noqa: BLE001 - a lost hint costs one polling period, never an event
                _log.debug("wake-up not sent", streams=streams, error=str(error))
            await asyncio.sleep(_COALESCE_SECONDS)

    async def _listen(self, dsn: str) -> None:
        while True:
            try:
                connection = await Connection.connect(dsn, autocommit=True, row_factory=dict_row)
                async with connection:
                    await connection.execute(f'LISTEN "{self.channel}"')
                    # What was sent before is lost, so everybody looks once.
                    self._hints.notify_all()
                    async for notice in connection.notifies():
                        self._hints.notify([notice.payload])
            except Exception as error:  # noqa: BLE001 - whatever it was, polling alone is no way to go on for good
                _log.warning("wake-ups interrupted, polling goes on", error=str(error))
                await asyncio.sleep(_RECONNECT_SECONDS)
