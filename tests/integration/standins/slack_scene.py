"""A Slack stand-in in tests: people act through its control interface, the app through the official clients."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from slack_bolt.adapter.socket_mode.async_handler import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.web.async_client import AsyncWebClient

from kingdom.standins.server import start
from kingdom.standins.slack.application import build_slack
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

BOT_TOKEN = "xoxb-standin"  # noqa: S105 - of a server that has no secrets
APP_TOKEN = "xapp-standin"  # noqa: S105 - of a server that has no secrets
# How often a client checks its connection. On a busy machine a shorter interval would drop it.
PING_SECONDS = 10.0


@dataclass(frozen=True)
class Scene:
    """A workspace with the channel #dev. Dana and the app are its members."""

    url: str
    control: aiohttp.ClientSession

    async def do(self, action: str, **about: Any) -> Any:
        """Perform an action of a person or of the operator."""
        async with self.control.post(f"{self.url}/_control/{action}", json=about) as answer:
            done = await answer.json()
            assert answer.status == 200, done
            return done

    async def look(self, at: str) -> Any:
        async with self.control.get(f"{self.url}/_control/{at}") as answer:
            return await answer.json()

    async def trouble(self, **fault: Any) -> None:
        async with self.control.post(f"{self.url}/_control/faults", json=[fault]) as answer:
            assert answer.status == 200, await answer.text()

    async def calls(self, name: str) -> list[dict[str, Any]]:
        return [call for call in await self.look("calls") if call["call"] == name]

    def client(self, **options: Any) -> AsyncWebClient:
        """Return the official client; it does not retry by itself."""
        return AsyncWebClient(**{"token": BOT_TOKEN, "base_url": f"{self.url}/api/", "retry_handlers": [], **options})

    async def wait_until_connected(self, count: int = 1) -> None:
        async def are_connected() -> bool:
            return bool((await self.look("connections"))["connections"] == count)

        await eventually(are_connected)

    async def wait_until_nothing_is_pending(self) -> None:
        async def is_empty() -> bool:
            return not (await self.look("state"))["pending"]

        await eventually(is_empty)

    async def person(self, name: str, *, in_channel: str = "") -> str:
        user = await self.do("users", name=name)
        if in_channel:
            await self.do("members", channel=in_channel, user=user["id"])
        return str(user["id"])


@asynccontextmanager
async def workspace(state: Path) -> AsyncIterator[Scene]:
    """Run the stand-in in this process."""
    running = await start(build_slack(state))
    try:
        async with aiohttp.ClientSession() as control:
            yield Scene(running.url, control)
    finally:
        await running.stop()


@asynccontextmanager
async def program(state: Path, port: int = 0) -> AsyncIterator[tuple[Scene, asyncio.subprocess.Process]]:
    """Run the stand-in as its own program, which a test may kill."""
    arguments = ("-m", "kingdom.standins.slack", "--state", str(state), "--port", str(port))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            url = json.loads(await process.stdout.readline())["url"]
        async with aiohttp.ClientSession() as control:
            yield Scene(url, control), process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)


@asynccontextmanager
async def bolt(scene: Scene, app: AsyncApp) -> AsyncIterator[None]:
    """Let a Bolt app listen by Socket Mode."""
    handler = AsyncSocketModeHandler(app, APP_TOKEN, ping_interval=PING_SECONDS)
    try:
        await handler.connect_async()  # type: ignore[no-untyped-call]
        await scene.wait_until_connected()
        yield
        await scene.wait_until_nothing_is_pending()
    finally:
        await handler.close_async()  # type: ignore[no-untyped-call]


@dataclass
class Listener:
    """A client that records every envelope, and acknowledges it unless `acknowledges` is False."""

    acknowledges: bool = True
    received: list[SocketModeRequest] = field(default_factory=list)

    async def receive(self, client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        self.received.append(request)
        if self.acknowledges:
            await client.send_socket_mode_response({"envelope_id": request.envelope_id})

    async def wait_for(self, count: int) -> list[SocketModeRequest]:
        """Wait for at least `count` envelopes, and return all that were received."""

        async def has_received() -> bool:
            return len(self.received) >= count

        await eventually(has_received)
        return self.received

    def texts(self) -> list[str]:
        return [request.payload["event"]["text"] for request in self.received]


@asynccontextmanager
async def listening(
    scene: Scene, *, acknowledges: bool = True, connections: int = 1, ping_seconds: float = PING_SECONDS
) -> AsyncIterator[Listener]:
    """Connect the official Socket Mode client."""

    async def is_stale() -> bool:
        # On a busy machine both client and server are slow, which is not a failure.
        return False

    listener = Listener(acknowledges)
    client = SocketModeClient(APP_TOKEN, web_client=scene.client(), ping_interval=ping_seconds)
    client.socket_mode_request_listeners.append(listener.receive)
    client.is_ping_pong_failing = is_stale  # type: ignore[method-assign]
    try:
        await client.connect()  # type: ignore[no-untyped-call]
        await scene.wait_until_connected(connections)
        yield listener
    finally:
        await client.close()  # type: ignore[no-untyped-call]
