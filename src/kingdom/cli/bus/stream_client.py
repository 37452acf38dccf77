"""A client of the live stream that reconnects by itself and resumes after the last message."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from kingdom.errors import Misconfigured, Permanent, Unavailable, describe_error

# A ping comes every 15 s, so a silent connection is dead after this time.
_SILENCE_SECONDS = 45.0
_CONNECT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 30.0
# An entry is one line, and can be long.
_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One server-sent event with data: its id, its event name and its data."""

    id: str
    event: str
    data: bytes


class StreamClient:
    """Reads a stream. When the connection is lost, it connects again and resumes at the last position.

    `position` is the id of the last complete message; at first, it is the position to begin at. `on_failure` gets the
    reason when the server cannot be reached, but not again before the next message.
    """

    def __init__(
        self, url: str, token: str | None, position: str, on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        self._url = url.rstrip("/")
        self._on_failure = on_failure
        self._headers = {"Accept": "text/event-stream"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.position = position
        self.connections = 0
        self._wait_seconds = 1.0

    async def messages(self) -> AsyncIterator[StreamMessage]:
        """Yield every message, forever. Raise only errors that a new attempt cannot repair."""
        silence = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        failures = 0
        async with aiohttp.ClientSession(timeout=silence, read_bufsize=_LINE_BYTES) as session:
            while True:
                try:
                    async for message in self._connection(session):
                        failures = 0
                        yield message
                except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
                    raise Misconfigured(f"{self._url} is not the address of a server: write https://HOST") from error
                except (aiohttp.ClientError, OSError, TimeoutError, Unavailable) as error:
                    failures += 1
                    if failures == 1:
                        self._on_failure(describe_error(error))
                await asyncio.sleep(min(self._wait_seconds * 2 ** max(0, failures - 1), _LONGEST_WAIT_SECONDS))

    async def _connection(self, session: aiohttp.ClientSession) -> AsyncIterator[StreamMessage]:
        """Yield the messages of one connection, until it ends."""
        headers = self._headers | {"Last-Event-ID": self.position}
        async with session.get(f"{self._url}/api/v1/stream", headers=headers) as response:
            await _require_stream(response)
            self.connections += 1
            event, data, position = "message", b"", self.position
            async for line in response.content:
                if not line.endswith(b"\n"):
                    # The connection was cut within a line.
                    return
                name, _, value = line.rstrip(b"\r\n").partition(b": ")
                if name == b"id":
                    position = value.decode()
                elif name == b"event":
                    event = value.decode()
                elif name == b"data":
                    data = value
                elif name == b"retry":
                    self._wait_seconds = int(value) / 1000
                elif line.rstrip(b"\r\n") == b"":
                    # Only an empty line completes a message.
                    self.position = position
                    if data:
                        yield StreamMessage(position, event, data)
                    event, data = "message", b""


async def _require_stream(response: aiohttp.ClientResponse) -> None:
    """Raise an error if the response is not a stream."""
    if response.status == HTTPStatus.OK and response.content_type == "text/event-stream":
        return
    reply = (await response.text())[:500]
    if response.status in (408, 429) or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unavailable(f"the server answers {response.status}: {reply}")
    if response.status in (401, 403):
        raise Permanent(
            f"the server refuses this stream ({response.status}): {reply or 'use a token that has the right `look`'}"
        )
    raise Misconfigured(f"{response.url} is not a Kingdom stream: it answers {response.status} {reply}")
