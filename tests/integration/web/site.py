"""A web server on a store of its own, and a client that signs in as people and programs do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from kingdom.access.credentials import INVITE, INVITE_LASTS, TOKEN, Grant, issue
from kingdom.access.rights import Right
from kingdom.access.settings import WebSettings
from kingdom.bootstrap import run_texts_of
from kingdom.bus import Bus, Operations
from kingdom.bus.throughput import THROUGHPUT
from kingdom.clock import utc_now
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.settings import Settings
from kingdom.web.route import WebContext
from kingdom.web.server import WebServer
from kingdom.web.stream import EVENT_STREAM
from kingdom.workflow.records import run_transaction
from tests.contract.backends import BackendUnderTest

EVERY_RIGHT = tuple(Right)
Wrap = Callable[[Bus, Operations], tuple[Bus, Operations]]
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@dataclass(frozen=True)
class Reply:
    """A response that has been read."""

    status: int
    headers: Mapping[str, str]
    text: str
    document: Any = None


@dataclass
class Site:
    """A running server, its store and a client. `headers` are sent with every request."""

    url: str
    bus: Bus
    operations: Operations
    client: aiohttp.ClientSession
    registry: CollectorRegistry
    stop: Callable[[], None]
    context: WebContext
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(
            method, f"{self.url}{path}", json=body, headers={**self.headers, **given}, allow_redirects=False
        ) as response:
            # A stream does not end.
            text = "" if response.content_type == EVENT_STREAM else await response.text()
            is_json = response.content_type == "application/json"
            return Reply(response.status, dict(response.headers), text, await response.json() if is_json else None)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.send("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.send("POST", path, body, **headers)

    async def token(
        self,
        name: str,
        *may: Right,
        generals: tuple[str, ...] = (),
        lasts: timedelta | None = None,
    ) -> str:
        """Create a token in the store, as the command line does."""
        grant = Grant(name=name, may=may or EVERY_RIGHT, generals=generals, lasts=lasts)
        act = partial(issue, kind=TOKEN, grant=grant, by="test", now=utc_now())
        return (await run_transaction(self.bus, act))[0]

    async def invite(self, name: str, *may: Right) -> str:
        """Invite a person, as the command line does."""
        grant = Grant(name=name, may=may or EVERY_RIGHT, lasts=INVITE_LASTS)
        act = partial(issue, kind=INVITE, grant=grant, by="test", now=utc_now())
        return (await run_transaction(self.bus, act))[0]

    async def signs_in(self, name: str, *may: Right) -> str:
        """Sign a person in, as a browser does, and return the cookie of the session."""
        secret = await self.invite(name, *may)
        reply = await self.send("POST", "/api/v1/session", {"secret": secret}, **_underscored(SAME_ORIGIN))
        assert reply.status == 200, reply.text
        return reply.headers["Set-Cookie"].partition(";")[0]

    def bearing(self, token: str) -> "Site":
        """Return the same site for a program with a token."""
        return replace(self, headers={"Authorization": f"Bearer {token}"})


def _underscored(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


@asynccontextmanager
async def serving(
    backend: BackendUnderTest, folder: Path, settings: WebSettings | None = None, *, wrap: Wrap = lambda *ports: ports
) -> AsyncIterator[Site]:
    """Run a server on a store in this process; `wrap` may change what the server does to the store."""
    realm = Realm()
    app = declare_application(realm)
    url = f"file:{backend.place}" if backend.name == "files" else backend.place
    async with backend.open(app.topology, (THROUGHPUT, *app.kinds)) as opened:
        operations = backend.operations(opened)
        bus, wrapped_operations = wrap(opened, operations)
        context = WebContext(
            bus=bus,
            operations=wrapped_operations,
            texts=run_texts_of(bus) or run_texts_of(opened),
            settings=Settings(database_url=url, file=folder / "kingdom.yaml", actor="anna@desk"),
            realm=realm,
            web=settings or WebSettings(address="127.0.0.1:0"),
            directory=folder,
        )
        registry = CollectorRegistry()
        server = WebServer(context, registry)
        running = asyncio.create_task(server.run())
        path = context.web.listen.path
        connector = aiohttp.UnixConnector(path) if path else aiohttp.TCPConnector()
        try:
            async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as client:
                yield Site(server.url, opened, operations, client, registry, server.stop, context)
        finally:
            server.stop()
            await running
