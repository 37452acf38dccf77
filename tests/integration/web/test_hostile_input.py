"""Requests that are made to break the server are refused, and none of them is a failure of the server."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from kingdom.access.rights import Right
from kingdom.web.routes import API_ROUTES
from tests.contract.backends import BackendUnderTest
from tests.integration.web.site import Site, serving

REFUSED = range(400, 500)
JSON = b"\r\nContent-Type: application/json"
# Headers that this server reads, with bytes that are no text.
HEADERS = (
    b"Authorization: Bearer \xff",
    b"Cookie: kingdom-session=\xff\xfe",
    b"Idempotency-Key: \xff",
    b"Last-Event-ID: \xff",
    b"Sec-Fetch-Site: \xff",
    b"Origin: http://\xff",
    b"User-Agent: \xff",
    b"X-Forwarded-User: \xff",
)
CURSORS = (
    "9" * 30 + ".1",
    "1." + "9" * 30,
    "-1.-1",
    "1e5.1",
    "\uff11.\uff11",
    "0.0\0",
    base64.urlsafe_b64encode(b'{"/court": "\\u0000", "/other": "\\u0000"}').decode(),
    base64.urlsafe_b64encode(b'{"/court": "\\ud800", "/other": "\\ud800"}').decode(),
    base64.urlsafe_b64encode(b"[" * 5000).decode(),
    "\ud7ff" * 300,
)
NAMES = ("../../../etc/passwd", "..", ".", "../kingdom", "/etc/passwd", "a/../../b", "%2e%2e", "\\..\\")


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


async def raw_status(site: Site, head: bytes, body: bytes = b"") -> int:
    """Send a request as it is, and return the status of the response."""
    host, _, port = site.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        head + f"\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def test_a_header_that_is_no_text_is_refused(site: Site) -> None:
    bearing = b"\r\nAuthorization: Bearer " + (await site.token("ci")).encode()
    invite = json.dumps({"secret": await site.invite("dana")}).encode()
    for header in HEADERS:
        for request, body in (
            (b"GET /api/v1/me HTTP/1.1", b""),
            (b"GET /api/v1/stream HTTP/1.1", b""),
            (b"POST /api/v1/events HTTP/1.1" + JSON, b'{"type": "demo.sent"}'),
            (b"POST /api/v1/session HTTP/1.1" + JSON, invite),
        ):
            assert await raw_status(site, request + b"\r\n" + header, body) in REFUSED, (request, header)
            if not header.startswith(b"Authorization"):
                assert await raw_status(site, request + b"\r\n" + header + bearing, body) in REFUSED, (request, header)


async def test_a_cursor_that_is_not_ours_fails_no_list_and_no_stream(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    takes_cursor = [route.path for route in API_ROUTES if route.query and "after" in route.query.__struct_fields__]
    for path in (path.replace("{id}", "nothing") for path in takes_cursor):
        for after in CURSORS:
            reply = await program.get(f"{path}?after={quote(after, errors='surrogatepass')}")
            assert reply.status < 500, (path, after, reply.text)


async def test_a_body_of_any_depth_is_no_failure(site: Site) -> None:
    headers = {"Authorization": f"Bearer {await site.token('ci')}", "Content-Type": "application/json"}
    for depth in (200, 900, 5_000, 100_000):
        body = b'{"type": "demo.deep", "payload": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
        async with site.client.post(f"{site.url}/api/v1/events", data=body, headers=headers) as response:
            assert response.status < 500, (depth, await response.text())


async def test_no_name_in_a_path_leads_out_of_the_store(site: Site, tmp_path: Path) -> None:
    (tmp_path / "kingdom.json").write_text(json.dumps({"id": "../kingdom", "secret": "outside the store"}))
    program = site.bearing(await site.token("ci"))
    looking = [route.path for route in API_ROUTES if "{" in route.path and route.method == "GET"]
    looking += ["/api/v1/runs/last/transcript?soldier={name}", "/api/v1/runs/last/diff?since={name}"]
    for path in looking:
        for name in NAMES:
            filled = path
            for parameter in ("{id}", "{name}", "{checkpoint}"):
                filled = filled.replace(parameter, quote(name, safe=""))
            reply = await program.get(filled)
            assert reply.status < 500, (filled, reply.text)
            assert "outside the store" not in reply.text
            assert "root:" not in reply.text


async def test_an_invite_that_is_redeemed_many_times_at_once_gives_one_session(site: Site) -> None:
    secret = await site.invite("dana", Right.LOOK)
    replies = await asyncio.gather(
        *(site.post("/api/v1/session", {"secret": secret}, Sec_Fetch_Site="same-origin") for _ in range(8))
    )
    assert sorted(reply.status for reply in replies) == [200] + [401] * 7
    admin = site.bearing(await site.token("admin"))
    assert len((await admin.get("/api/v1/sessions")).document["items"]) == 1
