"""Socket Mode: send each envelope to one connection, and an event again if it is not acknowledged in time."""

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
    """Sends the pending envelopes to the open connections."""

    def __init__(self, state_file: StateFile) -> None:
        self._state_file = state_file
        # The connections that get envelopes, the next one first. A connection that is being closed is only in `_open`.
        self._active: list[_Connection] = []
        self._open: set[_Connection] = set()
        # The envelope number and the connection of each envelope id that was sent.
        self._sent: dict[str, tuple[int, _Connection]] = {}
        # When an envelope without an acknowledgement is sent again.
        self._due: dict[int, float] = {}
        self._awaited: dict[int, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    @property
    def connections(self) -> int:
        """Return the number of connections that get envelopes."""
        return len(self._active)

    def wake(self) -> None:
        """Check the pending envelopes now."""
        self._changed.set()

    async def run(self) -> None:
        """Send due envelopes until cancelled."""
        with self._state_file.change() as state:
            # Slack sends a click only once, so the clicks before a crash are lost.
            state["pending"] = [each for each in state["pending"] if each["type"] != "interactive"]
        while True:
            self._changed.clear()
            for number in [each["number"] for each in self._state_file.state["pending"]]:
                await self._send_if_due(number)
            await self._wait_until_due()

    async def serve(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        """Serve a connection until it ends."""
        connection = _Connection(socket, transport)
        self._open.add(connection)
        self._active.append(connection)
        self.wake()
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    self._acknowledge(message.data)
        finally:
            self._remove_connection(connection)

    async def wait_for_acknowledgement(self, number: int) -> bool:
        """Return whether an envelope is acknowledged before the timeout. It is not sent again after that."""
        self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._state_file.state["settings"]["ack_seconds"]):
                await self._awaited[number]
        except TimeoutError:
            return False
        else:
            return True
        finally:
            del self._awaited[number]
            self._remove_pending(number)

    async def disconnect(self, reason: str | None, grace_seconds: float) -> int:
        """Close all connections after a warning and a grace period. If `reason` is None, close them at once."""
        leaving, self._active = self._active, []
        for connection in leaving:
            if reason is not None:
                with suppress(ConnectionError):
                    await connection.socket.send_json(
                        {"type": "disconnect", "reason": reason, "debug_info": {"host": _HOST}}
                    )
            elif connection.transport:
                connection.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                for connection in leaving:
                    await connection.closed.wait()
        for connection in leaving:
            await connection.socket.close()
        return len(leaving)

    async def close(self) -> None:
        """Close every connection because the server stops."""
        for connection in list(self._open):
            await connection.socket.close(code=WSCloseCode.GOING_AWAY)

    async def _send_if_due(self, number: int) -> None:
        envelope = self._pending(number)
        if envelope is None or not self._active or not self._is_due(envelope):
            return
        # The last attempt has timed out.
        if number in self._due and envelope["attempts"] > self._state_file.state["settings"]["retries"]:
            self._drop(envelope)
            return
        connection = self._active.pop(0)
        self._active.append(connection)
        with self._state_file.change():
            attempt = envelope["attempts"]
            envelope["attempts"] += 1
        envelope_id = str(uuid.uuid4())
        self._sent[envelope_id] = (number, connection)
        self._due[number] = time.monotonic() + self._state_file.state["settings"]["ack_seconds"]
        sent = {"envelope_id": envelope_id, "type": envelope["type"], "payload": envelope["payload"]}
        if envelope["type"] == "events_api":
            sent |= {"retry_attempt": attempt, "retry_reason": "timeout" if attempt else ""}
        try:
            await connection.socket.send_json({**sent, "accepts_response_payload": False})
        except ConnectionError:
            self._remove_connection(connection)

    def _is_due(self, envelope: dict[str, Any]) -> bool:
        if envelope["held"] or (envelope["type"] == "interactive" and envelope["attempts"]):
            return False
        return self._due.get(envelope["number"], 0.0) <= time.monotonic()

    async def _wait_until_due(self) -> None:
        pending = {each["number"] for each in self._state_file.state["pending"] if each["type"] == "events_api"}
        due = [when for number, when in self._due.items() if number in pending]
        seconds = max(0.0, min(due) - time.monotonic()) if due and self._active else None
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
        self._remove_pending(number)
        if number in self._awaited and not self._awaited[number].done():
            self._awaited[number].set_result(None)

    def _remove_pending(self, number: int) -> None:
        self._due.pop(number, None)
        if self._pending(number) is not None:
            with self._state_file.change() as state:
                state["pending"] = [each for each in state["pending"] if each["number"] != number]

    def _drop(self, envelope: dict[str, Any]) -> None:
        with self._state_file.change() as state:
            state["dropped"].append(envelope["payload"])
            self._remove_pending(envelope["number"])

    def _remove_connection(self, connection: _Connection) -> None:
        if connection in self._active:
            self._active.remove(connection)
        self._open.discard(connection)
        connection.closed.set()
        for envelope_id, (number, sent_to) in list(self._sent.items()):
            if sent_to is connection:
                del self._sent[envelope_id]
                self._due.pop(number, None)
        self.wake()

    def _pending(self, number: int) -> dict[str, Any] | None:
        return next((each for each in self._state_file.state["pending"] if each["number"] == number), None)


SENDER = web.AppKey("sender", EnvelopeSender)


def ticket(app_token: str) -> str:
    """Return the ticket for an app token. It stays valid after a restart of the server."""
    return hashlib.sha256(app_token.encode()).hexdigest()[:32]


async def connect(request: web.Request) -> web.StreamResponse:
    """Open a connection, send the hello message, and serve the connection."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    sender = request.app[SENDER]
    await socket.send_json(
        {
            "type": "hello",
            "num_connections": sender.connections + 1,
            "debug_info": {
                "host": _HOST,
                "build_number": 1,
                "approximate_connection_time": _CONNECTION_SECONDS,
            },
            "connection_info": {"app_id": request.app[STATE_FILE].state["app"]["id"]},
        }
    )
    await sender.serve(socket, request.transport)
    return socket


async def run_sender(application: web.Application) -> AsyncIterator[None]:
    """Run the sender while the server runs."""
    running = asyncio.create_task(application[SENDER].run())
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
