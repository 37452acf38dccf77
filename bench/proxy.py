"""A TCP proxy on loopback that can leave connections half-open, slow them down, or cut them within an answer."""

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

from bench.servers import LOOPBACK, PATIENCE_SECONDS, ServerUnavailableError

_BLOCK = 1 << 16
# The first answers of a connection only establish it, and are not cut.
ANSWERS_BEFORE_A_CUT = 8


class _Connection:
    """One client and its connection to the server. A frozen connection forwards nothing and is not closed."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.frozen = False
        self.answers = 0


class FaultyProxy:
    """Forwards to one address, in its own thread. Other threads call its methods.

    Everything is forwarded `delay_seconds` later. While `isolated`, new connections are frozen too. `cuts` counts the
    answers that were cut.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._connections: set[_Connection] = set()
        self._cut_share: float | None = None
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay_seconds = 0.0
        self.isolated = False
        self.cuts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            raise ServerUnavailableError("the proxy does not end")
        self._loop.close()

    def freeze(self) -> int:
        """Freeze all current connections without closing them, and return their number."""
        frozen = [connection for connection in set(self._connections) if not connection.frozen]
        for connection in frozen:
            connection.frozen = True
        return len(frozen)

    def drop_frozen(self) -> None:
        """Close frozen connections, like a middlebox that has forgotten them."""
        for connection in set(self._connections):
            if connection.frozen:
                self._loop.call_soon_threadsafe(connection.task.cancel)

    def cut_next_answer(self, share: float | None) -> None:
        """Forward this share of the next answer of an active connection and then close it; None stops cutting."""
        self._cut_share = share

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._server:
            self._server.close()
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task)
        connection.frozen = self.isolated
        self._connections.add(connection)
        onward: asyncio.StreamWriter | None = None
        try:
            # If the server is down, the connection is closed, so that the client notices.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                answers, onward = await asyncio.open_connection(*self._upstream)
                pumps = {
                    asyncio.ensure_future(self._pump(connection, reader, onward, answering=False)),
                    asyncio.ensure_future(self._pump(connection, answers, writer, answering=True)),
                }
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            for end in (writer, onward):
                if end is not None:
                    end.close()

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answering: bool
    ) -> None:
        """Forward one direction until it ends or is cut."""
        while data := await reader.read(_BLOCK):
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if connection.frozen:
                # Wait until the connection is dropped.
                await asyncio.Event().wait()
            connection.answers += answering
            if answering and self._cut_share is not None and connection.answers > ANSWERS_BEFORE_A_CUT:
                share, self._cut_share = self._cut_share, None
                writer.write(data[: int(len(data) * share)])
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()
