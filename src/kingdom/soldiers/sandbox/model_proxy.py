"""The proxy between a sandbox and the model of a vendor: it forwards calls of the model and refuses all other requests.

The proxy runs outside of the sandbox and adds the key; credentials that an agent sends are dropped. Streamed answers
are forwarded as they arrive.
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

# A function that takes the body of a POST to /voice and returns the response, both as JSON.
ToolCallHandler = Callable[[bytes], Awaitable[bytes]]

_TOOL_CALL_PATH = "/voice"
_TOOL_CALL_BYTES_MAX = 1 << 20
_CONNECTIONS_MAX = 128
_BACKLOG = 16
_LOOPBACK = "127.0.0.1"
_SHUTDOWN_SECONDS = 0.1
# This logger is disabled, so an agent cannot fill the log of the host with malformed requests.
_DISABLED_LOGGER = logging.getLogger("kingdom.soldiers.model_proxy.http")
_DISABLED_LOGGER.disabled = True
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=900)


class ModelProxy:
    """The model proxy of one agent, on a unix socket; open it, and close it when the agent has ended.

    With `on_loopback` it also listens on a free port of this machine, for an agent without its own network namespace;
    requests without the secret part of `url` are refused there. `meter` counts the cost of the answers.
    `on_tool_call` handles calls of the tools that Kingdom offers to the agent.
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
        """Return the number of requests refused so far."""
        return self._forwarder.refused if self._forwarder else 0

    async def open(self) -> None:
        """Start to listen."""
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
        """Close all connections and remove the socket; calling it again does nothing."""
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
        """Return the protocol factory. It limits connections, so one agent cannot use up the limit of the process."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", partial(self._answer, prefix))
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=_DISABLED_LOGGER,
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
    """Closes every connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
