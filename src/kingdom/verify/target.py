"""The target of the calls: a small HTTP server that stands for an outside system and records what it executes."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from kingdom.verify.history import History

LOOPBACK = "127.0.0.1"
# The caller gives up after this time. The slow responses below take longer.
CALL_TIMEOUT_SECONDS = 0.5
_LATENCY_SECONDS = 0.03
_SILENCE_SECONDS = 0.7
_LATENESS_SECONDS = 1.2
# After this time the target shows every call that it has executed.
SETTLES_SECONDS = 2.5
_REQUEST_SECONDS = 30.0

STEPS = ("throttle", "throttle_for_a_second", "fail", "accept_then_fail", "accept_silently", "accept_late")
_CREATED, _ACCEPTED, _MULTIPLE_CHOICES = 201, 202, 300


class CallTarget:
    """Executes calls. `answers` in a request lists the responses to the first, second … request with the same key."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._requests: dict[str, int] = defaultdict(int)
        self._identifiers: set[str] = set()
        self._fences: dict[str, int] = defaultdict(int)
        self.port = 0
        # A function that gets the key of each accepted, but not confirmed call. An event must close the call later.
        self.on_accepted: Callable[[str], None] = _ignore

    async def start(self) -> None:
        """Listen on a free port of this host."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def wait_for_requests(self) -> None:
        """Wait until every received request is answered."""
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=_REQUEST_SECONDS)

    async def stop(self) -> None:
        """Stop listening and drop open connections."""
        if self._server:
            self._server.close()
        for task in set(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            # A caller may be stopped in the middle of a request, and send the rest much later.
            async with asyncio.timeout(_REQUEST_SECONDS):
                path, body = await _read_request(reader)
            status, answer, headers = await (self._find(body) if path == "/findings" else self._call(body))
            if status:
                writer.write(_response(status, answer, headers))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError):
            # The caller was killed or gave up. An executed call stays executed.
            return
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _call(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        key = body["key"]
        number = self._requests[key]
        self._requests[key] += 1
        step = body["answers"][number] if number < len(body["answers"]) else "accept"
        self._history.write("received", key=key, identifier=body["identifier"], fence=body["fence"], step=step)
        await asyncio.sleep(_LATENCY_SECONDS)
        match step:
            case "throttle":
                return 429, {}, {}
            case "throttle_for_a_second":
                return 429, {}, {"Retry-After": "1"}
            case "fail":
                return 503, {}, {}
            case "accept_then_fail":
                self._accept(body)
                return 500, {}, {}
            case "accept_silently":
                self._accept(body)
                await asyncio.sleep(_SILENCE_SECONDS)
                return 0, {}, {}
            case "accept_late":
                await asyncio.sleep(_LATENESS_SECONDS)
        status = self._accept(body)
        is_only_accepted = body.get("confirmed_later") and status < _MULTIPLE_CHOICES
        return _ACCEPTED if is_only_accepted else status, {}, {}

    def _accept(self, body: dict[str, Any]) -> int:
        key, identifier, fence = body["key"], body["identifier"], body["fence"]
        facts = {"key": key, "identifier": identifier, "fence": fence, "event": body["event"], "stream": body["stream"]}
        if body["idempotency"] == "fence":
            if fence < self._fences[key]:
                self._history.write("fenced_off", **facts)
                return 412
            self._fences[key] = fence
        elif body["idempotency"] == "identifier" and identifier in self._identifiers:
            self._history.write("deduplicated", **facts)
            return 200
        self._identifiers.add(identifier)
        self._history.write("accepted", **facts)
        if body.get("confirmed_later"):
            self.on_accepted(key)
        return _CREATED

    async def _find(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        key, fence = body["key"], body["fence"]
        if body["idempotency"] == "fence":
            if fence < self._fences[key]:
                return 412, {}, {}
            self._fences[key] = fence
        return 200, {"happened": body["identifier"] in self._identifiers}, {}


def _ignore(_key: str) -> None:
    return


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    body = await reader.readexactly(_content_length(head))
    return head.split(" ", 2)[1], msgspec.json.decode(body)


def _response(status: int, answer: dict[str, Any], headers: dict[str, str]) -> bytes:
    body = msgspec.json.encode(answer)
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _content_length(head: str) -> int:
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    return int(fields.get("content-length", "0"))


class TargetRequest:
    """One POST request to the target. Connecting and sending are separate, so a script can act right before sending."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> "TargetRequest":
        """Open the connection."""
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    def send(self, path: str, body: dict[str, Any]) -> None:
        """Write the whole request to the connection at once."""
        encoded = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {len(encoded)}\r\n\r\n"
        self._writer.write(head.encode("latin-1") + encoded)

    async def response(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Return status, headers and body."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            body = await self._reader.readexactly(_content_length(head))
        finally:
            self._writer.close()
        status, *lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        return int(status.split(" ", 2)[1]), headers, msgspec.json.decode(body)
