"""Socket Mode: every envelope to one connection, and again until it is acknowledged."""

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from kingdom.standins.server import STATE_FILE
from kingdom.standins.state_file import StateFile

_HOST = "applink-standin"
_CONNECTION_SECONDS = 3600


@dataclass(frozen=True, eq=False)
class _Connection:
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class EnvelopeSender:
    """Brings the pending envelopes of a state_file to the connections there are."""

    def __init__(self, state_file: StateFile) -> None:
        self._book = state_file
        self._links: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._sent: dict[str, tuple[int, _Connection]] = {}
        self._due: dict[int, float] = {}
        self._awaited: dict[int, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    @property
    def connections(self) -> int:
        """Return how many connections get envelopes."""
        return len(self._links)

    def wake(self) -> None:
        """Have a look at what is pending."""
        self._changed.set()

    async def run(self) -> None:
        """Send what is due until cancelled."""
        with self._book.change() as state:
            # Whoever clicked before a crash has seen an error: Slack does not repeat clicks.
            state["pending"] = [each for each in state["pending"] if each["type"] != "interactive"]
        while True:
            self._changed.clear()
            for number in [each["number"] for each in self._book.state["pending"]]:
                await self._send_if_due(number)
            await self._rest()

    async def serve(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        """Use a connection until it ends."""
        link = _Connection(socket, transport)
        self._open.add(link)
        self._links.append(link)
        self.wake()
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    self._acknowledge(message.data)
        finally:
            self._leave(link)

    async def is_acknowledged(self, number: int) -> bool:
        """Wait for the acknowledgement of an envelope that is sent only once, and forget it when none comes."""
        self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._book.state["settings"]["ack_seconds"]):
                await self._awaited[number]
        except TimeoutError:
            return False
        else:
            return True
        finally:
            del self._awaited[number]
            self._forget(number)

    async def disconnect(self, reason: str | None, grace_seconds: float) -> int:
        """End all connections with a warning and some time to react to it, or without a reason at once."""
        leaving, self._links = self._links, []
        for link in leaving:
            if reason is not None:
                with suppress(ConnectionError):
                    await link.socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": _HOST}})
            elif link.transport:
                link.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                for link in leaving:
                    await link.closed.wait()
        for link in leaving:
            await link.socket.close()
        return len(leaving)

    async def close(self) -> None:
        """Say goodbye to every connection, as a server that stops."""
        for link in list(self._open):
            await link.socket.close(code=WSCloseCode.GOING_AWAY)

    async def _send_if_due(self, number: int) -> None:
        envelope = self._pending(number)
        if envelope is None or not self._links or not self._is_due(envelope):
            return
        # A lost connection is no fault of the app: only silence counts.
        if number in self._due and envelope["attempts"] > self._book.state["settings"]["retries"]:
            self._give_up(envelope)
            return
        link = self._links.pop(0)
        self._links.append(link)
        with self._book.change():
            attempt = envelope["attempts"]
            envelope["attempts"] += 1
        envelope_id = str(uuid.uuid4())
        self._sent[envelope_id] = (number, link)
        self._due[number] = time.monotonic() + self._book.state["settings"]["ack_seconds"]
        sent = {"envelope_id": envelope_id, "type": envelope["type"], "payload": envelope["payload"]}
        if envelope["type"] == "events_api":
            sent |= {"retry_attempt": attempt, "retry_reason": "timeout" if attempt else ""}
        try:
            await link.socket.send_json({**sent, "accepts_response_payload": False})
        except ConnectionError:
            self._leave(link)

    def _is_due(self, envelope: dict[str, Any]) -> bool:
        if envelope["held"] or (envelope["type"] == "interactive" and envelope["attempts"]):
            return False
        return self._due.get(envelope["number"], 0.0) <= time.monotonic()

    async def _rest(self) -> None:
        pending = {each["number"] for each in self._book.state["pending"] if each["type"] == "events_api"}
        due = [when for number, when in self._due.items() if number in pending]
        seconds = max(0.0, min(due) - time.monotonic()) if due and self._links else None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _acknowledge(self, text: str) -> None:
        try:
            envelope_id = str(json.loads(text)["envelope_id"])
        except (ValueError, TypeError, KeyError):
            return
        if envelope_id not in self._sent:
            return
        number, _ = self._sent.pop(envelope_id)
        self._forget(number)
        if number in self._awaited and not self._awaited[number].done():
            self._awaited[number].set_result(None)

    def _forget(self, number: int) -> None:
        self._due.pop(number, None)
        if self._pending(number) is not None:
            with self._book.change() as state:
                state["pending"] = [each for each in state["pending"] if each["number"] != number]

    def _give_up(self, envelope: dict[str, Any]) -> None:
        with self._book.change() as state:
            state["dropped"].append(envelope["payload"])
            self._forget(envelope["number"])

    def _leave(self, link: _Connection) -> None:
        if link in self._links:
            self._links.remove(link)
        self._open.discard(link)
        link.closed.set()
        for envelope_id, (number, bearer) in list(self._sent.items()):
            if bearer is link:
                del self._sent[envelope_id]
                self._due.pop(number, None)
        self.wake()

    def _pending(self, number: int) -> dict[str, Any] | None:
        return next((each for each in self._book.state["pending"] if each["number"] == number), None)


SENDER = web.AppKey("sender", EnvelopeSender)


def ticket(app_token: str) -> str:
    """Return what admits the owner of an app token; it stays good when the server was killed."""
    return hashlib.sha256(app_token.encode()).hexdigest()[:32]


async def connect(request: web.Request) -> web.StreamResponse:
    """Open a connection, greet, and serve it."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    courier = request.app[SENDER]
    await socket.send_json(
        {
            "type": "hello",
            "num_connections": courier.connections + 1,
            "debug_info": {
                "host": _HOST,
                "build_number": 1,
                "approximate_connection_time": _CONNECTION_SECONDS,
            },
            "connection_info": {"app_id": request.app[STATE_FILE].state["app"]["id"]},
        }
    )
    await courier.serve(socket, request.transport)
    return socket


async def run_sender(application: web.Application) -> AsyncIterator[None]:
    """Let the courier run as long as the server does."""
    running = asyncio.create_task(application[SENDER].run())
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
