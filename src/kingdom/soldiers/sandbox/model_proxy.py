"""The one way out of a sandbox: what leads to the model of a vendor is let through with the key, the rest is refused.

The key is added here, outside of the sandbox; what an agent sends as its own is dropped. What the model streams is
handed on as it comes.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.sandbox.request_forwarder import RequestForwarder, read_body
from kingdom.soldiers.sandbox.unix_socket import private_listener
from kingdom.soldiers.sandbox.vendors import Upstream

# Takes what was posted to /voice and returns the answer, both as JSON.
ToolCallHandler = Callable[[bytes], Awaitable[bytes]]

_TOOL_CALL_PATH = "/voice"
_TOOL_CALL_BYTES_MAX = 1 << 20
_CONNECTIONS_MAX = 128
_BACKLOG = 16
_LOOPBACK = "127.0.0.1"
_SHUTDOWN_SECONDS = 0.1
# Whatever nonsense an agent sends, the log of the house is not its to fill.
_QUIET = logging.getLogger("kingdom.soldiers.gate.http")
_QUIET.disabled = True
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=900)


class ModelProxy:
    """The gate of one soldier, on a unix socket; open it, and close it when the agent has ended.

    With `on_loopback` it listens also on a free port of this machine, for an agent without a network of its own; who
    does not know the secret part of its `url` is refused there. `meter` counts what the answers of models cost.
    """

    def __init__(
        self,
        path: Path,
        upstreams: Sequence[Upstream],
        *,
        on_tool_call: ToolCallHandler | None = None,
        on_loopback: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.socket = path
        self.url = ""
        self._upstreams = tuple(upstreams)
        self._on_tool_call = on_tool_call
        self._on_loopback = on_loopback
        self._secret = f"/{secrets.token_urlsafe(32)}"
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []
        self._meter = meter or Meter()
        self._forwarder: RequestForwarder | None = None

    @property
    def refused(self) -> int:
        """Return how many requests were refused so far."""
        return self._forwarder.refused if self._forwarder else 0

    async def open(self) -> None:
        """Listen from now on."""
        client = aiohttp.ClientSession(timeout=_TIMEOUT, auto_decompress=False)
        self._forwarder = RequestForwarder(client, self._upstreams, self._meter)
        loop = asyncio.get_running_loop()
        try:
            self._servers.append(
                await loop.create_unix_server(
                    await self._protocol(prefix=""), sock=private_listener(self.socket), backlog=_BACKLOG
                )
            )
            if self._on_loopback:
                protocol = await self._protocol(prefix=self._secret)
                self._servers.append(await loop.create_server(protocol, _LOOPBACK, 0, backlog=_BACKLOG))
                port = self._servers[-1].sockets[0].getsockname()[1]
                self.url = f"http://{_LOOPBACK}:{port}{self._secret}"
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all conversations and remove the socket; a second time nothing happens."""
        for server in self._servers:
            server.close()
        for runner in self._runners:
            await runner.cleanup()
        self._servers.clear()
        self._runners.clear()
        if self._forwarder is not None:
            await self._forwarder.close()
        with suppress(OSError):
            self.socket.unlink()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _protocol(self, *, prefix: str) -> Callable[[], asyncio.BaseProtocol]:
        """Return what speaks with whoever connects; one agent cannot use up the connections that all need."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", partial(self._answer, prefix))
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=_QUIET,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        self._runners.append(runner)
        server: Any = runner.server
        return lambda: server() if len(server.connections) < _CONNECTIONS_MAX else _RejectConnection()

    async def _answer(self, prefix: str, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if self._forwarder is None or not secrets.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            raise web.HTTPForbidden
        path = path[len(prefix) :]
        if request.method == "POST" and path == _TOOL_CALL_PATH and self._on_tool_call is not None:
            call = await read_body(request.content, _TOOL_CALL_BYTES_MAX)
            return web.Response(body=await self._on_tool_call(call), content_type="application/json")
        return await self._forwarder.answer(request, path)


class _RejectConnection(asyncio.Protocol):
    """Speaks with nobody."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
