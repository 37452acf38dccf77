"""A proxy outside of the sandbox that forwards TLS to the hosts in `soldiers.egress` of kingdom.yaml.

A program sends a CONNECT request. The proxy resolves the name itself, refuses addresses that are not public, connects
to the address that it checked, and forwards bytes only if the ClientHello of the program has the same host name.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from kingdom.errors import KingdomError
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.sandbox.client_hello import server_name
from kingdom.soldiers.sandbox.egress_ledger import EgressLedger, EgressLimits, Outcome
from kingdom.soldiers.sandbox.egress_rules import (
    HTTPS_PORT,
    EgressRefused,
    canonical_name,
    check_host,
    is_public,
    parse_connect_request,
)
from kingdom.soldiers.sandbox.sandbox import EGRESS_PORT
from kingdom.soldiers.sandbox.unix_socket import private_listener

# Returns the addresses of a host or raises OSError.
Resolve = Callable[[str], Sequence[str]]
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_RESOLVING_AT_ONCE = 4
_ADDRESSES_TRIED = 4
_BACKLOG = 64
# A connection reaches the proxy this many iterations of the event loop after the server has accepted it.
_ARRIVAL_ITERATIONS = 2
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
# The fatal TLS alert unrecognized_name. Clients show this alert, but would show no reason for a closed connection.
_UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
_FORBIDDEN, _BAD_GATEWAY = "403", "502"


class _HostUnreachable(KingdomError):
    """Raised when an allowed host cannot be reached."""


def resolve(host: str) -> list[str]:
    """Return the addresses of a host according to the resolver of this machine."""
    addresses = socket.getaddrinfo(host, HTTPS_PORT, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def egress_environment() -> dict[str, str]:
    """Return the variables that point programs to the proxy; there is none for plain http, which is refused."""
    proxy = f"http://127.0.0.1:{EGRESS_PORT}"
    inside = "127.0.0.1,localhost,::1"
    proxies = {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": inside, "no_proxy": inside}
    # NODE_USE_ENV_PROXY makes `fetch` of Node use the other variables.
    return {**proxies, "NODE_USE_ENV_PROXY": "1"}


class Egress:
    """The host names that programs on this machine may reach, and one ledger per run.

    `names` are spelled as `parse_allowed_name` returns them.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        limits: EgressLimits | None = None,
        resolve: Resolve = resolve,
        port: int = HTTPS_PORT,
    ) -> None:
        self.names = tuple(names)
        self.port = port
        self._limits = limits or EgressLimits()
        self._resolve = resolve
        # Names are resolved in these threads, so slow name resolution does not block other work of the process.
        self._threads = ThreadPoolExecutor(_RESOLVING_AT_ONCE, thread_name_prefix="egress")
        self._ledgers: WeakValueDictionary[Path, EgressLedger] = WeakValueDictionary()

    def proxy(self, folder: Path, log: Path, redaction: Redaction = DEFAULT_REDACTION) -> "EgressProxy":
        """Return a proxy for one program, with its socket in `folder`; proxies with the same log share a ledger."""
        ledger = self._ledgers.get(log)
        if ledger is None:
            ledger = self._ledgers[log] = EgressLedger(log, self._limits)
        return EgressProxy(self, folder / f"egress-{secrets.token_hex(8)}", ledger, redaction)

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host; raises EgressRefused if one of them is not public."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.resolve_seconds):
                addresses = await loop.run_in_executor(self._threads, self._resolve, host)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it takes too long"
            raise _HostUnreachable(f"the address of {host} cannot be found: {reason}") from error
        if not addresses:
            raise _HostUnreachable(f"{host} has no address")
        if private := [address for address in addresses if not is_public(address)]:
            raise EgressRefused(f"{host} leads to {private[0]}, which is not a public address")
        return addresses


class EgressProxy:
    """The proxy of one program, on a unix socket; it serves until the context ends."""

    def __init__(self, egress: Egress, path: Path, ledger: EgressLedger, redaction: Redaction) -> None:
        self.socket = path
        self._egress = egress
        self._ledger = ledger
        self._limits = ledger.limits
        self._redaction = redaction
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = private_listener(self.socket)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=self._listener, limit=_CHUNK_BYTES, backlog=_BACKLOG
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A server that is closed leaks the connections that are on their way to `_accept`, so let them arrive first.
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(_ARRIVAL_ITERATIONS):
            await asyncio.sleep(0)
        serving = [*self._serving]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        # The event loop closes aborted transports in its next iteration.
        await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            self.socket.unlink()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve((reader, writer)), name="egress")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # Close the connection here too, because a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, client: _Streams) -> None:
        writer = client[1]
        try:
            with self._ledger.connection():
                await self._handle(client)
                await _close(writer, self._limits.idle_seconds)
        except EgressRefused as error:
            self._record("refused", "", str(error))
        except (OSError, EOFError, asyncio.LimitOverrunError):
            # The client is gone or sent no request, so there is nothing to answer.
            pass
        finally:
            writer.transport.abort()

    async def _handle(self, client: _Streams) -> None:
        reader, writer = client
        async with asyncio.timeout(self._limits.request_seconds):
            head = await reader.readuntil(_HEAD_END)
        host = ""
        try:
            host, port = parse_connect_request(head)
            self._ledger.check_limits()
            host = check_host(host, port, self._egress.names, allowed_port=self._egress.port)
            remote, address = await self._connect(host, await self._egress.addresses(host))
        except EgressRefused as error:
            self._record("refused", host, str(error))
            writer.write(_error_response(_FORBIDDEN, str(error)))
            return
        except _HostUnreachable as error:
            self._record("failed", host, str(error))
            writer.write(_error_response(_BAD_GATEWAY, str(error)))
            return
        try:
            writer.write(_ESTABLISHED)
            await self._tunnel_tls(host, address, client, remote)
        finally:
            remote[1].transport.abort()

    async def _connect(self, host: str, addresses: Sequence[str]) -> tuple[_Streams, str]:
        """Connect to one of the checked addresses. Connecting by name could lead to an address that was not checked."""
        for address in addresses[:_ADDRESSES_TRIED]:
            with suppress(OSError):
                async with asyncio.timeout(self._limits.connect_seconds):
                    return await asyncio.open_connection(address, self._egress.port, limit=_CHUNK_BYTES), address
        raise _HostUnreachable(f"{host} cannot be reached at {', '.join(addresses[:_ADDRESSES_TRIED])}")

    async def _tunnel_tls(self, host: str, address: str, client: _Streams, remote: _Streams) -> None:
        reader, writer = client
        try:
            hello = await self._client_hello(reader, host)
        except EgressRefused as error:
            self._record("refused", host, str(error), address=address)
            writer.write(_UNRECOGNIZED_NAME)
            return
        self._record("opened", host, address=address)
        tunnel = _Tunnel(self._ledger, client, remote)
        reason = "its program has ended"
        try:
            reason = await tunnel.run(hello)
        finally:
            self._record("closed", host, reason, address=address, sent=tunnel.sent, received=tunnel.received)

    async def _client_hello(self, reader: asyncio.StreamReader, host: str) -> bytes:
        """Read until the ClientHello is complete and return all bytes; raises EgressRefused for another host."""
        data = b""
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                while (name := server_name(data)) is None:
                    chunk = await reader.read(_CHUNK_BYTES)
                    if not chunk:
                        raise EgressRefused("it was closed before its TLS began")
                    data += chunk
        except TimeoutError:
            raise EgressRefused("its TLS did not begin in time") from None
        if (named := canonical_name(name)) != host:
            raise EgressRefused(f"its TLS names another host than its CONNECT request: {named or 'no full name'}")
        return data

    def _record(self, outcome: Outcome, host: str, reason: str = "", **figures: Any) -> None:
        redact = self._redaction.text
        self._ledger.record(outcome, redact(host), redact(reason), **figures)


class _Tunnel:
    """Copies bytes in both directions and counts them, until both sides end or a limit is reached."""

    def __init__(self, ledger: EgressLedger, client: _Streams, remote: _Streams) -> None:
        self.sent = self.received = 0
        self._ledger = ledger
        self._client, self._remote = client, remote

    async def run(self, hello: bytes) -> str:
        """Copy until both sides have ended, and return an empty text; if the tunnel ends early, return the reason."""
        limits, loop = self._ledger.limits, asyncio.get_running_loop()
        end = loop.time() + limits.lifetime_seconds
        copying: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(limits.idle_seconds) as timeout:

                def count(*, sent: int = 0, received: int = 0) -> None:
                    self.sent += sent
                    self.received += received
                    self._ledger.count(sent=sent, received=received)
                    if not timeout.expired():
                        timeout.reschedule(min(loop.time() + limits.idle_seconds, end))

                count(sent=len(hello))
                self._remote[1].write(hello)
                copying += [
                    asyncio.create_task(_copy(self._client[0], self._remote[1], lambda size: count(sent=size))),
                    asyncio.create_task(_copy(self._remote[0], self._client[1], lambda size: count(received=size))),
                ]
                await asyncio.gather(*copying)
        except EgressRefused as error:
            return str(error)
        except TimeoutError:
            return "open for too long" if loop.time() >= end else "idle for too long"
        except OSError as error:
            return f"connection lost: {type(error).__name__}"
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
        await _close(self._remote[1], limits.idle_seconds)
        return ""


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    while data := await source.read(_CHUNK_BYTES):
        count(len(data))
        target.write(data)
        await target.drain()
    target.write_eof()


async def _close(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Close a connection after the peer has received everything, or after a timeout."""
    with suppress(OSError):
        async with asyncio.timeout(seconds):
            writer.close()
            await writer.wait_closed()


def _error_response(status: str, reason: str) -> bytes:
    """Return a response with the reason. Its status line has the reason too, because most clients show only this."""
    body = f"{reason}\n".encode("ascii", "replace")
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii", "replace") + b"Connection: close\r\n\r\n" + body
