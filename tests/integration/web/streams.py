"""A server of the live stream and its clients, for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from kingdom.bus import Bus, LogEntry
from kingdom.cli.bus.stream_client import StreamClient, StreamMessage
from kingdom.errors import KingdomError
from kingdom.web.failures import error_response
from kingdom.web.stream import PATH, LogStream, StreamSession
from tests.patience import PATIENCE_SECONDS

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def serving(
    stream: LogStream,
    session: StreamSession | None = None,
    check: Callable[[web.Request], Awaitable[None]] | None = None,
) -> AsyncIterator[str]:
    """Serve a stream on loopback, and return the address of the server."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if check:
            await check(request)
        try:
            return await stream.handle(request, session)
        except KingdomError as error:
            return error_response(error)

    app = web.Application()
    app.router.add_get(PATH, handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await stream.stop()
        await runner.cleanup()


@asynccontextmanager
async def connected(url: str, position: str = "", **query: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """Open one stream as `curl` does."""
    headers = {"Last-Event-ID": position} if position else {}
    async with aiohttp.ClientSession() as session, session.get(url + PATH, params=query, headers=headers) as response:
        yield response


async def block(response: aiohttp.ClientResponse) -> list[str]:
    """Return the lines of the next message."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        found: list[str] = []
        while line := (await response.content.readline()).decode().rstrip("\n"):
            found.append(line)
        return found


async def append(bus: Bus, *types: str) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(*(LogEntry(type=each, actor="test", data={"of": each}) for each in types))


async def take(client: StreamClient, count: int) -> list[StreamMessage]:
    """Return the next messages of a client."""
    found: list[StreamMessage] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for message in client.messages():
            found.append(message)
            if len(found) == count:
                break
    return found


def types(messages: Sequence[StreamMessage]) -> list[str]:
    return [data(message)["type"] for message in messages]


def data(message: StreamMessage) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(message.data)
    return found
