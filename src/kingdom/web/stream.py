"""The live stream of the log: `GET /api/v1/stream` as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.operations import Operations
from kingdom.clock import utc_now
from kingdom.errors import KingdomError, MalformedRequest, NotSignedIn, Unavailable
from kingdom.views.stream import StreamReset
from kingdom.web.log_feed import Frame, LogFeed, TooSlowError, encode_position
from kingdom.web.metrics import LogStreamMetrics

PATH = "/api/v1/stream"
EVENT_STREAM = "text/event-stream"
STREAM: web.AppKey["LogStream"] = web.AppKey("stream")
_BUFFER_ENTRIES = 5000
_PING_SECONDS = 15.0
# A client that takes none of its data for this long is dropped.
_WRITE_SECONDS = 30.0
_STOP_SECONDS = 5.0
# Each stream takes a file descriptor, of which a process often has 1024.
_CLIENTS_MAX = 800
# Data is written in pieces of about this size, so that a slow client only has to receive one piece in time.
_PIECE_BYTES = 32 << 10
_RETRY_MS = 1000
_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-store",
    # Without this header, nginx collects the data before it forwards it.
    "X-Accel-Buffering": "no",
}
_log = structlog.get_logger("kingdom.web")


async def _always_valid() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSession:
    """The session or token that a stream uses. The stream ends when the session or token ends.

    `is_valid` is called once, after the stream has begun to read the log, so that no revocation is missed.
    """

    id: str
    is_valid: Callable[[], Awaitable[bool]] = _always_valid
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """The figures of this process's streams. `lag_seconds` is the age of the oldest transaction that delays entries."""

    clients: int
    position: str
    lag_seconds: float
    dropped: int


@dataclass(slots=True, eq=False)
class _OpenStream:
    session: StreamSession
    transport: asyncio.Transport | None
    ended: bool = False

    def abort(self) -> None:
        """End the connection at once, without the data that is not sent yet."""
        self.ended = True
        if self.transport:
            self.transport.abort()


class LogStream:
    """Serves the log to any number of clients, with one reader of the store per process.

    `ended_credential` returns the id of the session or token that a log entry ends, or None. Its streams are closed,
    even if another process has ended it.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        ended_credential: Callable[[LogEntry], str | None] = lambda _: None,
        registry: CollectorRegistry | None = None,
        buffer: int = _BUFFER_ENTRIES,
        ping_seconds: float = _PING_SECONDS,
        write_seconds: float = _WRITE_SECONDS,
        clients_max: int = _CLIENTS_MAX,
    ) -> None:
        self._clients_max = clients_max
        self._feed = LogFeed(operations, buffer=buffer, on_entry=self._observe)
        self._ended_credential = ended_credential
        self._ping_seconds = ping_seconds
        self._write_seconds = write_seconds
        self._connections: set[_OpenStream] = set()
        self._dropped = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._metrics = LogStreamMetrics(registry)
        self._metrics.clients.set_function(lambda: len(self._connections))
        self._metrics.lag.set_function(lambda: self._feed.lag_seconds)

    @property
    def figures(self) -> StreamFigures:
        """Return the current figures."""
        return StreamFigures(
            clients=len(self._connections),
            position=str(self._feed.position),
            lag_seconds=self._feed.lag_seconds,
            dropped=self._dropped,
        )

    async def stop(self) -> None:
        """Tell every client when to connect again, end the streams, and stop reading."""
        self._stopping = True
        self._feed.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._idle.wait()
        for connection in tuple(self._connections):
            connection.abort()
        await self._feed.stop()

    def close(self, session_id: str) -> int:
        """Close the streams of a session at once, and return their number."""
        closed = [each for each in self._connections if each.session.id == session_id]
        for connection in closed:
            connection.abort()
        self._feed.wake()
        return len(closed)

    async def handle(self, request: web.Request, session: StreamSession | None = None) -> web.StreamResponse:
        """Serve one client until it leaves, is too slow, or its session ends. The caller has checked its rights."""
        start = request.headers.get("Last-Event-ID") or request.query.get("after") or "now"
        kinds = [kind for value in request.query.getall("kinds", []) for kind in value.split(",") if kind]
        after = _parse_position(start)
        async with self._connected(request, session or StreamSession(id="")) as connection:
            await self._feed.join()
            try:
                if not await connection.session.is_valid():
                    raise NotSignedIn("the session has ended: sign in again")
                client = _Client(self._feed, connection, request, kinds, self._write_seconds)
                await self._serve(client, self._feed.position if after is None else after)
                return client.response
            finally:
                await self._feed.leave()

    @asynccontextmanager
    async def _connected(self, request: web.Request, session: StreamSession) -> AsyncIterator[_OpenStream]:
        if self._stopping:
            raise Unavailable("the server is stopping: connect again")
        if len(self._connections) >= self._clients_max:
            raise Unavailable(f"this server has {self._clients_max} open streams: close some, or start another server")
        connection = _OpenStream(session, request.transport)
        self._connections.add(connection)
        self._idle.clear()
        try:
            yield connection
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._idle.set()

    async def _serve(self, client: "_Client", after: LogCursor) -> None:
        """Send everything after a cursor. If the client is too slow, drop the connection: it resumes by itself."""
        try:
            after = await client.open(after)
            while not (self._stopping or client.has_ended):
                after = await client.send_next(after, self._ping_seconds)
            if self._stopping:
                await client.write(b"retry: %d\n: the server is stopping\n\n" % _RETRY_MS)
        except (TooSlowError, TimeoutError):
            self._dropped += 1
            self._metrics.dropped.inc()
            client.abort()
        except KingdomError as error:
            # The stream cannot say this in its protocol, and the client resumes after the last entry that it has.
            _log.warning("a stream ends because the log cannot be read", error=str(error))
        except ConnectionError:
            # The client has left, or its session has ended.
            client.abort()

    def _observe(self, entry: LogEntry) -> None:
        if credential := self._ended_credential(entry):
            self.close(credential)


class _Client:
    """One client: the kinds of entries that it wants, and the response that it gets."""

    def __init__(
        self,
        feed: LogFeed,
        connection: _OpenStream,
        request: web.Request,
        kinds: Collection[str],
        write_seconds: float,
    ) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._feed = feed
        self._connection = connection
        self._request = request
        self._kinds = frozenset(kind for kind in kinds if not kind.endswith("*"))
        self._prefixes = tuple(kind[:-1] for kind in kinds if kind.endswith("*"))
        self._write_seconds = write_seconds

    @property
    def has_ended(self) -> bool:
        """Return whether the session of the client has ended."""
        expires = self._connection.session.expires_at
        return self._connection.ended or (expires is not None and expires <= utc_now())

    def abort(self) -> None:
        """Drop the connection."""
        self._connection.abort()

    async def open(self, after: LogCursor) -> LogCursor:
        """Send the head of the response and the entries that are not in the buffer. Return the position reached."""
        keeps = await self._feed.keeps_after(after)
        await self.response.prepare(self._request)
        # The client gets a position at once, so it can resume even if it is cut before the first entry.
        opening = b"retry: %d\n" % _RETRY_MS
        if keeps:
            await self.write(opening + encode_position(after))
        else:
            after = self._feed.position
            reset = msgspec.json.encode(StreamReset(cursor=str(after)))
            await self.write(opening + b"id: %s\nevent: reset\ndata: %s\n\n" % (str(after).encode(), reset))
        while not self._feed.has_buffered(after) and after < self._feed.position and not self.has_ended:
            frames = await self._feed.read_stored(after)
            if not frames:
                # Retention has removed these entries meanwhile. The client resumes and gets a reset.
                raise TooSlowError
            after = await self._send(frames)
        return after

    async def send_next(self, after: LogCursor, ping_seconds: float) -> LogCursor:
        """Send the next entries, or a ping if there are none for some time. Return the position reached."""
        wait = ping_seconds
        if (expires := self._connection.session.expires_at) is not None:
            wait = min(wait, max(0.0, (expires - utc_now()).total_seconds()))
        frames = await self._feed.next(after, wait)
        if frames is None and not self.has_ended:
            await self.write(b": ping\n" + encode_position(after))
        return await self._send(frames) if frames and not self.has_ended else after

    async def write(self, data: bytes) -> None:
        """Write, and fail if the client does not take the data in time."""
        async with asyncio.timeout(self._write_seconds):
            await self.response.write(data)

    async def _send(self, frames: Sequence[Frame]) -> LogCursor:
        """Send the frames of the wanted kinds, and the position of the last frame."""
        piece = bytearray()
        for frame in frames:
            if self._wants(frame.kind):
                piece += frame.text
            if len(piece) >= _PIECE_BYTES:
                await self.write(bytes(piece))
                piece.clear()
        if not self._wants(frames[-1].kind):
            piece += encode_position(frames[-1].cursor)
        await self.write(bytes(piece))
        return frames[-1].cursor

    def _wants(self, kind: str) -> bool:
        return not (self._kinds or self._prefixes) or kind in self._kinds or kind.startswith(self._prefixes or "\0")


def _parse_position(text: str) -> LogCursor | None:
    """Return the cursor of `start` or CURSOR, or None for `now`."""
    if text == "now":
        return None
    try:
        return LogCursor() if text == "start" else LogCursor.parse(text)
    except ValueError:
        raise MalformedRequest(
            f"{text!r} is not a position: use start, now, or the id of a message of this stream"
        ) from None
