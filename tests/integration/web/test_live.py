"""The live stream behind sign-in: it needs a right, and ends with the session or token that opened it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from kingdom.access.credentials import SESSION, TOKEN, get_by_name, revoke
from kingdom.access.rights import Right
from kingdom.web.stream import PATH
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually
from tests.integration.web.site import Site, serving
from tests.integration.web.streams import append, block
from tests.patience import PATIENCE_SECONDS

CI = "ci"
Ending = Callable[[Site, str], Awaitable[object]]


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


@asynccontextmanager
async def streaming(site: Site, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with site.client.get(f"{site.url}{PATH}", headers={**site.headers, **given}) as response:
        assert response.status == 200, await response.text()
        await block(response)
        yield response


async def is_cut(response: aiohttp.ClientResponse) -> bool:
    """Return whether the server ends a stream without saying that the client may come back."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return b"is stopping" not in await response.content.read()
        except aiohttp.ClientError:
            return True


async def revoke_in_store(site: Site, name: str) -> None:
    """Revoke a session or token as another process does."""
    kind = TOKEN if name == CI else SESSION
    async with site.bus.transaction() as transaction:
        for credential in await get_by_name(transaction, kind, name):
            await revoke(transaction, kind, credential, by="test")


async def test_a_program_with_the_right_to_look_follows_the_log(site: Site) -> None:
    program = site.bearing(await site.token(CI, Right.LOOK))
    async with streaming(program) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
        await append(site.bus, "TaskStarted")
        assert '"type":"TaskStarted"' in (await block(response))[-1]
    refused = await program.get(f"{PATH}?after=yesterday")
    assert (refused.status, refused.document["code"]) == (400, "malformed_request")


async def test_a_client_that_leaves_its_stream_is_not_counted_as_a_failure_of_the_server(site: Site) -> None:
    count = site.registry.get_sample_value

    async def is_counted() -> bool:
        return count("kingdom_web_request_duration_seconds_count", {"route": PATH}) == 1

    async with streaming(site.bearing(await site.token(CI))):
        pass
    await eventually(is_counted)
    assert count("kingdom_web_requests_total", {"route": PATH, "status": "499"}) == 1


@pytest.mark.parametrize(
    "end",
    [
        lambda site, token: site.bearing(token).send("DELETE", f"/api/v1/tokens/{CI}"),
        lambda site, _: revoke_in_store(site, CI),
    ],
    ids=["here", "elsewhere"],
)
async def test_a_stream_ends_when_its_token_is_revoked(site: Site, end: Ending) -> None:
    token, admin = await site.token(CI), await site.token("admin")
    async with streaming(site.bearing(token)) as response, streaming(site.bearing(admin)) as other:
        await end(site, admin)
        assert await is_cut(response)
        assert (await site.bearing(token).get(PATH)).status == 401
        # The stream of another token continues.
        await append(site.bus, "TaskStarted")
        while "TaskStarted" not in (await block(other))[-1]:
            pass


@pytest.mark.parametrize(
    "end",
    [
        lambda site, cookie: site.send("DELETE", "/api/v1/session", Cookie=cookie, Sec_Fetch_Site="same-origin"),
        lambda site, _: revoke_in_store(site, "dana"),
    ],
    ids=["signs out", "is revoked"],
)
async def test_a_stream_ends_with_the_session_of_its_person(site: Site, end: Ending) -> None:
    cookie = await site.signs_in("dana", Right.LOOK)
    async with streaming(site, Cookie=cookie) as response:
        await end(site, cookie)
        assert await is_cut(response)
    assert (await site.get(PATH, Cookie=cookie)).status == 401


async def test_a_stream_ends_when_its_token_expires(site: Site) -> None:
    token = ""
    for seconds in (1, 5, 25, 125):
        token = await site.token(f"{CI}-{seconds}", Right.LOOK, lasts=timedelta(seconds=seconds))
        # A slow machine may open the stream only after a short time has passed.
        async with site.client.get(f"{site.url}{PATH}", headers=site.bearing(token).headers) as response:
            if response.status == 200:
                assert await is_cut(response)
                break
    assert (await site.bearing(token).get(PATH)).status == 401


async def test_a_server_that_stops_asks_its_clients_to_reconnect(backend: BackendUnderTest, tmp_path: Path) -> None:
    async with serving(backend, tmp_path) as site:
        token = await site.token(CI, Right.LOOK)
        # The client outlives the server.
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as client:
            response = await client.get(f"{site.url}{PATH}")
            await block(response)
            site.stop()
            said = await response.content.read()
    assert said == b"retry: 1000\n: the server is stopping\n\n"


async def test_open_streams_are_counted(site: Site) -> None:
    program = site.bearing(await site.token(CI, Right.LOOK))
    async with streaming(program), streaming(program):
        assert site.registry.get_sample_value("kingdom_web_stream_clients") == 2
