"""The web server of one process."""

import asyncio
import errno
import socket
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from kingdom.access.credentials import ended_credential
from kingdom.access.servers import save_server
from kingdom.access.settings import DEFAULT_ADDRESS, ListenAddress
from kingdom.errors import KingdomError, Misconfigured
from kingdom.web.access import AccessCheck
from kingdom.web.app import create_app
from kingdom.web.metrics import WebMetrics
from kingdom.web.route import WebContext
from kingdom.web.stream import LogStream
from kingdom.workflow.records import run_transaction

# How long requests may take to end after a stop.
_GRACE_SECONDS = 5.0
_SOCKET_MODE = 0o660
_log = structlog.get_logger("kingdom.web")


class WebServer:
    """Serves the API, the pages and the live stream until it is stopped."""

    def __init__(self, context: WebContext, registry: CollectorRegistry) -> None:
        if reason := context.web.why_unsafe():
            raise Misconfigured(reason)
        self._context = context
        self._metrics = WebMetrics(registry)
        self._stream = LogStream(context.operations, revoked_session=ended_credential, registry=registry)
        self._stopping = asyncio.Event()
        self._listener = _listen(context.web.listen, is_default=context.web.address == DEFAULT_ADDRESS)
        self.url = self._own_url()

    async def run(self) -> None:
        """Serve requests until stopped; running requests end first."""
        access = AccessCheck(self._context.bus, self._context.web, self._port)
        app = create_app(self._context, access, self._metrics, self._stream)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE_SECONDS, handler_cancellation=True
        )
        await runner.setup()
        try:
            await web.SockSite(runner, self._listener).start()
            await self._announce(is_running=True)
            _log.info("web server started", url=self.url)
            await self._stopping.wait()
        finally:
            await runner.cleanup()
            self._listener.close()
            if path := self._context.web.listen.path:
                Path(path).unlink(missing_ok=True)  # noqa: ASYNC240 - one fast call at the end
            await self._announce(is_running=False)

    def stop(self, *, at_once: bool = False) -> None:
        """End the server. Running requests have a few seconds to end, even if `at_once` is set."""
        del at_once
        self._stopping.set()

    @property
    def _port(self) -> int:
        return 0 if self._context.web.listen.path else int(self._listener.getsockname()[1])

    def _own_url(self) -> str:
        settings = self._context.web
        if settings.url:
            return settings.url.rstrip("/")
        host = settings.listen.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    async def _announce(self, *, is_running: bool) -> None:
        """Store the address, and whether the server runs, for `kingdom web open`. An error is only logged."""
        try:
            await run_transaction(self._context.bus, partial(save_server, url=self.url, is_running=is_running))
        except (KingdomError, OSError) as error:
            _log.warning("the address of the web server could not be stored", error=str(error))


def _listen(address: ListenAddress, *, is_default: bool) -> socket.socket:
    """Open the socket. If the default port is in use, take a free one: another realm may run on this machine."""
    if address.path:
        return _listen_on_path(address.path)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        if is_default and error.errno == errno.EADDRINUSE:
            return socket.create_server((address.host, 0), family=family)
        place = f"{address.host}:{address.port}"
        raise Misconfigured(f"web.address {place} cannot be opened ({error}): set web.address to another") from error


def _listen_on_path(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        # A server that was killed leaves its socket.
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        Path(path).chmod(_SOCKET_MODE)
        listener.listen()
    except OSError as error:
        listener.close()
        raise Misconfigured(f"web.address unix:{path} cannot be opened ({error}): choose another path") from error
    return listener
