"""The web server of one process."""

import asyncio
import errno
import os
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
# How long a server on the same Unix socket may take to accept a connection.
_ANSWER_SECONDS = 1.0
_log = structlog.get_logger("kingdom.web")


class WebServer:
    """Serves the API, the pages and the live stream until it is stopped."""

    def __init__(self, context: WebContext, registry: CollectorRegistry) -> None:
        if reason := context.web.why_unsafe():
            raise Misconfigured(reason)
        self._context = context
        self._metrics = WebMetrics(registry)
        self._stream = LogStream(context.operations, ended_credential=ended_credential, registry=registry)
        self._stopping = asyncio.Event()
        self._listener = _listen(context.web.listen, is_default=context.web.address == DEFAULT_ADDRESS)
        self._socket_file = _file_id(context.web.listen.path)
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
            self._remove_path()
            await runner.cleanup()
            self._listener.close()
            await self._announce(is_running=False)

    def stop(self, *, at_once: bool = False) -> None:
        """End the server. Running requests have a few seconds to end, even if `at_once` is set."""
        del at_once
        self._stopping.set()

    def _remove_path(self) -> None:
        """Remove the Unix socket, unless another server has replaced it."""
        # No other file gets its id before the socket is closed.
        if self._socket_file and _file_id(path := self._context.web.listen.path) == self._socket_file:
            Path(path).unlink(missing_ok=True)

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
        """Store the address and whether the server runs for `kingdom web open` and `invite`. Errors are only logged."""
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
    if _is_answered(path):
        raise Misconfigured(f"another server answers on unix:{path}: stop it, or choose another path in web.address")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if Path(path).is_socket():
            # A server that was killed leaves its socket.
            Path(path).unlink(missing_ok=True)
        listener.bind(path)
        Path(path).chmod(_SOCKET_MODE)
        listener.listen()
    except OSError as error:
        listener.close()
        raise Misconfigured(f"web.address unix:{path} cannot be opened ({error}): choose another path") from error
    return listener


def _is_answered(path: str) -> bool:
    """Return whether a server listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_ANSWER_SECONDS)
        try:
            client.connect(path)
        except (TimeoutError, BlockingIOError):
            # Its queue is full.
            return True
        except OSError:
            return False
    return True


def _file_id(path: str) -> tuple[int, int] | None:
    """Return what identifies the file at a path, or None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
