"""The stand-in for GitHub in tests: actions of people, a plain client, the official client, and a webhook receiver."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web
from github import Auth, Github

from kingdom.standins.github.application import build_github
from kingdom.standins.server import start
from tests.patience import PATIENCE_SECONDS

TOKEN = "github-token"  # noqa: S105 - it guards nothing
REPOSITORY = "acme/rocket"
SECRET = "hush"  # noqa: S105 - it guards nothing
_T = TypeVar("_T")


class Site:
    """A running stand-in. Requests carry a valid token unless the test gives another one."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def ask(self, method: str, path: str, **options: Any) -> aiohttp.ClientResponse:
        headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
        url = path if path.startswith("http") else self.url + path
        async with self.session.request(method, url, headers=headers, **options) as answer:
            await answer.read()
            return answer

    async def read(self, path: str, **options: Any) -> Any:
        answer = await self.ask("GET", path, **options)
        assert answer.status == 200, await answer.text()
        return await answer.json()

    async def people(self, what: str, **doing: Any) -> Any:
        """Perform an action of people, in the repository of the tests unless another is named."""
        async with self.session.post(f"{self.url}/_control/{what}", json=doing) as answer:
            assert answer.ok, await answer.text()
            return await answer.json()

    async def happen(self, what: str, **doing: Any) -> Any:
        return await self.people(what, repository=REPOSITORY, **doing)

    async def pull_request(self, head: str = "feature", **more: Any) -> Any:
        return await self.happen("pull_request", **{"title": f"Add {head}", "head": head, **more})

    async def faults(self, *faults: dict[str, Any]) -> None:
        async with self.session.post(f"{self.url}/_control/faults", json=faults) as answer:
            assert (await answer.json())["added"] == len(faults)

    async def calls(self) -> list[str]:
        async with self.session.get(f"{self.url}/_control/calls") as answer:
            return [call["call"] for call in await answer.json()]

    async def official(self, work: Callable[[Github], _T], **options: Any) -> _T:
        """Run a function of the official client in its own thread."""

        def run() -> _T:
            hurry = {"seconds_between_requests": None, "seconds_between_writes": None, "retry": None}
            client = Github(base_url=self.url, **{"auth": Auth.Token(TOKEN), **hurry, **options})
            try:
                return work(client)
            finally:
                client.close()

        return await asyncio.to_thread(run)


class Receiver:
    """A receiver of webhooks. It answers with its list of statuses in order, then with 200."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[str, str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self._changed = asyncio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        signature = f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"
        if not hmac.compare_digest(signature, request.headers.get("X-Hub-Signature-256", "")):
            return web.Response(status=401)
        self.headers.append(dict(request.headers))
        is_json = request.content_type == "application/json"
        payload = json.loads(body if is_json else parse_qs(body.decode())["payload"][0])
        event, action = request.headers["X-GitHub-Event"], payload.get("action", "")
        self.got.append((request.headers["X-GitHub-Delivery"], f"{event}.{action}".rstrip("."), payload))
        self._changed.set()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    async def wait_for(self, count: int) -> list[str]:
        """Wait for at least `count` deliveries, and return the names of all."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return [name for _, name, _ in self.got]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    application = web.Application()
    application.router.add_post("/hook", receiver.receive)
    running = await start(application)
    receiver.url = f"{running.url}/hook"
    try:
        yield receiver
    finally:
        await running.stop()


@asynccontextmanager
async def standing_in(state: Path) -> AsyncIterator[Site]:
    running = await start(build_github(state))
    try:
        async with aiohttp.ClientSession() as session:
            yield Site(running.url, session)
    finally:
        await running.stop()
