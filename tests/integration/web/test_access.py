"""Access control: every route needs its right, and every known attack is refused."""

import asyncio
import io
import re
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kingdom.access.rights import Right
from kingdom.access.settings import ProxySettings, WebSettings
from kingdom.errors import Misconfigured
from kingdom.web import app
from kingdom.web.app import ROUTES
from kingdom.web.route import ApiRoute, Audience
from kingdom.web.server import WebServer
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.web.site import Site, serving
from tests.patience import PATIENCE_SECONDS

UNKNOWN = "6f1c2f3a-0000-7000-8000-000000000000"
FILES = "files"


@pytest.fixture
async def site(realm: Path, tmp_path: Path) -> AsyncIterator[Site]:
    backend: BackendUnderTest = BACKENDS[FILES](str(realm))
    async with serving(backend, tmp_path) as site:
        yield site
    backend.close()


def address(route: ApiRoute) -> str:
    return re.sub(r"\{\w+\}", "nothing", route.path.replace("{id}", UNKNOWN))


def needed(right: Right) -> list[ApiRoute]:
    return [route for route in ROUTES if route.right is right]


def test_every_route_has_a_right_and_only_signing_in_and_descriptions_are_open_to_everyone() -> None:
    assert {route.path for route in ROUTES if route.right is Audience.EVERYONE} == {
        "/api/v1/session",
        "/api/v1/openapi.json",
        "/sign-in",
        "/assets/sign-in.js",
        "/assets/kingdom.js",
        "/assets/kingdom.css",
        "/assets/crown.svg",
    }
    assert {(route.method, route.path) for route in ROUTES if route.right is Audience.SIGNED_IN} == {
        ("DELETE", "/api/v1/session"),
        ("GET", "/api/v1/me"),
    }
    assert all(isinstance(route.right, Right | Audience) for route in ROUTES)
    # A route that changes something needs more than the right to look.
    assert not [route for route in ROUTES if route.method != "GET" and route.right is Right.LOOK]


async def test_every_route_without_its_right_is_refused(site: Site) -> None:
    for right in Right:
        others = [each for each in Right if each is not right]
        program = site.bearing(await site.token(f"lacks-{right}", *others))
        for route in needed(right):
            reply = await program.send(route.method, address(route), {} if route.body else None)
            assert (reply.status, reply.document["code"]) == (403, "not_allowed"), route


async def test_every_route_without_sign_in_is_refused(site: Site) -> None:
    for route in ROUTES:
        if route.right is not Audience.EVERYONE:
            reply = await site.send(
                route.method, address(route), {} if route.body else None, Sec_Fetch_Site="same-origin"
            )
            assert (reply.status, reply.document["code"]) == (401, "not_signed_in"), route


async def test_with_its_right_no_route_is_refused(site: Site) -> None:
    program = site.bearing(await site.token("all"))
    for route in ROUTES:
        reply = await program.send(route.method, address(route), {} if route.body else None)
        assert reply.status not in (401, 403, 500), (route, reply.text)


async def test_an_invite_signs_in_once_and_its_session_ends_with_signing_out(site: Site) -> None:
    secret = await site.invite("dana", Right.LOOK)
    first = await site.post("/api/v1/session", {"secret": secret}, Sec_Fetch_Site="same-origin")
    assert first.document == {"name": "dana", "may": ["look"], "generals": []}
    flags = first.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(flags)
    again = await site.post("/api/v1/session", {"secret": secret}, Sec_Fetch_Site="same-origin")
    assert again.status == 401
    cookie = flags[0]
    assert (await site.get("/api/v1/me", Cookie=cookie)).document["name"] == "dana"
    out = await site.send("DELETE", "/api/v1/session", Cookie=cookie, Sec_Fetch_Site="same-origin")
    assert out.status == 200
    assert (await site.get("/api/v1/me", Cookie=cookie)).status == 401


async def test_signing_in_gives_a_new_session_whatever_cookie_the_browser_had(site: Site) -> None:
    secret, cookie = await site.invite("dana"), (await site.signs_in("eve")).partition("=")[0]
    planted = f"{cookie}=ks_planted-by-an-attacker"
    reply = await site.post("/api/v1/session", {"secret": secret}, Cookie=planted, Sec_Fetch_Site="same-origin")
    assert reply.status == 200
    assert reply.headers["Set-Cookie"].partition(";")[0] != planted
    assert (await site.get("/api/v1/me", Cookie=planted)).status == 401
    # Two sign-ins of one person have two sessions.
    assert len({await site.signs_in("dana"), await site.signs_in("dana")}) == 2


async def test_an_invite_is_no_session_and_no_token(site: Site) -> None:
    secret = await site.invite("dana")
    assert (await site.get("/api/v1/me", Authorization=f"Bearer {secret}")).status == 401
    cookie = (await site.signs_in("eve")).partition("=")[0]
    assert (await site.get("/api/v1/me", Cookie=f"{cookie}={secret}")).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {},
    ],
    ids=str,
)
async def test_a_change_that_another_site_asks_a_browser_for_is_refused(site: Site, headers: dict[str, str]) -> None:
    cookie = await site.signs_in("dana")
    body = {"type": "demo.forged"}
    refused = await site.post("/api/v1/events", body, Cookie=cookie, **headers)
    assert (refused.status, refused.document["code"]) == (403, "refused")
    assert (await site.get("/api/v1/events", Cookie=cookie)).document["items"] == []
    assert (await site.post("/api/v1/events", body, Cookie=cookie, Sec_Fetch_Site="same-origin")).status == 200


async def test_our_own_origin_may_change_something_and_another_port_of_this_machine_may_not(site: Site) -> None:
    cookie = await site.signs_in("dana")
    body = {"type": "demo.sent"}
    assert (await site.post("/api/v1/events", body, Cookie=cookie, Origin=site.url)).status == 200
    assert (await site.post("/api/v1/events", body, Cookie=cookie, Origin="http://127.0.0.1:1")).status == 403
    ours_elsewhere = site.url.replace("http:", "https:")
    assert (await site.post("/api/v1/events", body, Cookie=cookie, Origin=ours_elsewhere)).status == 403


async def test_signing_in_from_another_site_is_refused(site: Site) -> None:
    secret = await site.invite("mallory")
    reply = await site.post("/api/v1/session", {"secret": secret}, Sec_Fetch_Site="cross-site")
    assert reply.status == 403
    assert "Set-Cookie" not in reply.headers


async def test_a_name_that_resolves_to_this_machine_is_refused(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    port = site.url.rpartition(":")[2]
    for host in (f"rebound.example:{port}", "rebound.example", "127.0.0.1", "127.0.0.1:1", ""):
        reply = await program.get("/api/v1/me", Host=host)
        assert (reply.status, reply.document["code"]) == (403, "refused"), host
    assert (await program.get("/sign-in", Host="rebound.example")).status == 403
    assert (await program.get("/no-such-page", Host="rebound.example")).status == 403
    assert (await program.get("/api/v1/me", Host=f"localhost:{port}")).status == 200


async def test_a_token_in_the_address_is_refused_even_if_it_is_valid(site: Site) -> None:
    token = await site.token("ci")
    for path in (f"/api/v1/me?token={token}", f"/api/v1/runs?after={token}", f"/api/v1/runs/{token}"):
        reply = await site.bearing(token).get(path)
        assert reply.status == 400
        assert "secret" in reply.document["message"]
        assert token not in reply.text


async def test_a_revoked_or_expired_token_is_refused(site: Site) -> None:
    token, other = await site.token("ci"), await site.token("other")
    assert (await site.bearing(token).get("/api/v1/me")).status == 200
    ended = await site.bearing(other).send("DELETE", "/api/v1/tokens/ci")
    assert [each["name"] for each in ended.document["items"]] == ["ci"]
    assert (await site.bearing(token).get("/api/v1/me")).status == 401
    expired = await site.token("late", lasts=timedelta(microseconds=1))
    assert (await site.bearing(expired).get("/api/v1/me")).status == 401


async def test_the_name_of_an_expired_token_can_be_used_again(site: Site) -> None:
    await site.token("ci", lasts=timedelta(microseconds=1))
    admin = site.bearing(await site.token("admin"))
    listed = (await admin.get("/api/v1/tokens")).document["items"]
    assert [each["name"] for each in listed] == ["admin"]
    assert (await admin.post("/api/v1/tokens", {"name": "ci", "may": ["look"]})).status == 200


async def test_a_revoked_session_is_refused(site: Site) -> None:
    cookie, kept = await site.signs_in("dana"), await site.signs_in("eve")
    program = site.bearing(await site.token("admin"))
    listed = (await program.get("/api/v1/sessions")).document["items"]
    assert sorted(each["name"] for each in listed) == ["dana", "eve"]
    assert (await program.send("DELETE", "/api/v1/sessions/dana")).status == 200
    assert (await site.get("/api/v1/me", Cookie=cookie)).status == 401
    assert (await site.get("/api/v1/me", Cookie=kept)).status == 200


async def test_the_store_has_no_secret(site: Site, realm: Path) -> None:
    token, invite, cookie = await site.token("ci"), await site.invite("eve"), await site.signs_in("dana")
    session = cookie.partition("=")[2]
    texts = [path.read_bytes() for path in realm.rglob("*") if path.is_file()]
    assert any(b"dana" in text for text in texts)
    for secret in (token, invite, session):
        assert not [text for text in texts if secret.encode() in text]


async def test_an_administrator_cannot_grant_rights_that_they_do_not_have(site: Site) -> None:
    admin = site.bearing(await site.token("admin", Right.ADMINISTER, Right.LOOK))
    assert (await admin.post("/api/v1/tokens", {"name": "robot", "may": ["act"]})).status == 403
    made = await admin.post("/api/v1/tokens", {"name": "robot", "may": ["look"]})
    assert (await site.bearing(made.document["secret"]).get("/api/v1/status")).status == 200
    assert (await admin.post("/api/v1/tokens", {"name": "robot", "may": ["look"]})).status == 409
    limited = site.bearing(await site.token("limited", generals=("gen-pr",)))
    assert (await limited.post("/api/v1/invites", {"name": "dana", "may": ["act"]})).status == 403
    assert (await limited.send("DELETE", "/api/v1/tokens/admin")).status == 403
    assert (await limited.send("DELETE", "/api/v1/tokens/limited")).status == 200


async def test_an_administrator_of_one_general_cannot_take_hosts_away_from_others(site: Site) -> None:
    limited = site.bearing(await site.token("limited", generals=("gen-pr",)))
    for act in ("drain", "undrain", "retire"):
        reply = await limited.post(f"/api/v1/hosts/box/{act}", {"noLongerRuns": True} if act == "retire" else None)
        assert (reply.status, reply.document["code"]) == (403, "not_allowed"), act


async def test_servers_of_two_realms_on_one_machine_do_not_overwrite_each_others_sessions(
    site: Site, tmp_path: Path
) -> None:
    backend = BACKENDS[FILES](str(tmp_path / "another"))
    async with serving(backend, tmp_path) as other:
        cookies = [await site.signs_in("dana"), await other.signs_in("dana")]
        assert len({cookie.partition("=")[0] for cookie in cookies}) == 2
        for each in (site, other):
            assert (await each.get("/api/v1/me", Cookie="; ".join(cookies))).status == 200
    backend.close()


async def test_a_request_whose_body_does_not_arrive_in_time_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    host, _, port = site.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /api/v1/session HTTP/1.1\r\nHost: {host}:{port}\r\nSec-Fetch-Site: same-origin\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
    assert b" 408 " in await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
    writer.close()


async def test_every_response_has_the_headers_that_keep_a_browser_safe(site: Site) -> None:
    for path in ("/sign-in", "/assets/sign-in.js", "/api/v1/me", "/no-such-page"):
        headers = (await site.get(path)).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
    page = (await site.get("/sign-in")).text
    assert "<script>" not in page
    assert "onload" not in page


PROXY = ProxySettings(secret="only the proxy knows", people={"dana": (Right.LOOK,)})  # noqa: S106 - a test


async def test_a_header_of_a_proxy_counts_only_with_its_secret(realm: Path, tmp_path: Path) -> None:
    backend = BACKENDS[FILES](str(realm))
    async with serving(backend, tmp_path, WebSettings(address="127.0.0.1:0", proxy=PROXY)) as site:
        forged = await site.get("/api/v1/me", X_Forwarded_User="dana")
        guessed = await site.get("/api/v1/me", X_Forwarded_User="dana", X_Kingdom_Proxy_Secret="a guess")  # noqa: S106 - a test
        assert [forged.status, guessed.status] == [401, 401]
        trusted = {"X_Forwarded_User": "dana", "X_Kingdom_Proxy_Secret": PROXY.secret}
        assert (await site.get("/api/v1/me", **trusted)).document == {"name": "dana", "may": ["look"], "generals": []}
        # The browser of a person is behind the proxy, so a change must still come from our own pages.
        assert (await site.send("DELETE", "/api/v1/session", **trusted)).status == 403
        stranger = {"X_Forwarded_User": "mallory", "X_Kingdom_Proxy_Secret": PROXY.secret}
        assert (await site.get("/api/v1/me", **stranger)).status == 401
        # A session of another person, or one that has ended, does not count against the proxy.
        for cookie in (await site.signs_in("eve"), "kingdom-session-1=ks_ended"):
            assert (await site.get("/api/v1/me", Cookie=cookie, **trusted)).document["name"] == "dana"
        assert (await site.get("/api/v1/me", Cookie=await site.signs_in("eve"), **stranger)).document["name"] == "eve"
    backend.close()


async def test_a_header_of_a_proxy_counts_over_a_unix_socket(realm: Path, tmp_path: Path) -> None:
    backend = BACKENDS[FILES](str(realm))
    people = ProxySettings(people={"dana": (Right.LOOK,)})
    settings = WebSettings(address=f"unix:{tmp_path}/web.sock", url="https://kingdom.example", proxy=people)
    async with serving(backend, tmp_path, settings) as site:
        reply = await site.get("/api/v1/me", X_Forwarded_User="dana")
        assert reply.document["name"] == "dana"
        assert "Strict-Transport-Security" in reply.headers
        secret = await site.invite("eve")
        signed_in = await site.post("/api/v1/session", {"secret": secret}, Origin="https://kingdom.example")
        assert signed_in.headers["Set-Cookie"].startswith("__Host-kingdom=ks_")
        assert "Secure" in signed_in.headers["Set-Cookie"].split("; ")
        assert (await site.get("/api/v1/me", Host="other.example", X_Forwarded_User="dana")).status == 403
    assert not (tmp_path / "web.sock").exists()
    backend.close()


def on_path(path: Path) -> WebSettings:
    """Return settings for a Unix socket whose proxy names dana."""
    people = ProxySettings(people={"dana": (Right.LOOK,)})
    return WebSettings(address=f"unix:{path}", url="https://kingdom.example", proxy=people)


async def test_a_second_server_does_not_take_the_unix_socket_of_a_running_one(realm: Path, tmp_path: Path) -> None:
    backend, path = BACKENDS[FILES](str(realm)), tmp_path / "web.sock"
    settings = on_path(path)
    async with serving(backend, tmp_path, settings) as site:
        with pytest.raises(Misconfigured, match=r"another server answers on unix:.*: stop it, or choose another path"):
            WebServer(site.context, CollectorRegistry())
        assert (await site.get("/api/v1/me", X_Forwarded_User="dana")).status == 200
    backend.close()


async def test_a_server_too_busy_to_accept_a_connection_keeps_its_unix_socket(realm: Path, tmp_path: Path) -> None:
    backend, path = BACKENDS[FILES](str(realm)), tmp_path / "web.sock"
    with ExitStack() as waiting:
        busy = waiting.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        # The queue of length 0 holds one connection.
        waiting.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        with pytest.raises(Misconfigured, match="another server answers on unix:"):
            async with serving(backend, tmp_path, on_path(path)):
                pass
        assert path.is_socket()
    backend.close()


async def test_a_server_that_ends_leaves_the_unix_socket_of_its_successor(realm: Path, tmp_path: Path) -> None:
    backend, path = BACKENDS[FILES](str(realm)), tmp_path / "web.sock"
    settings = on_path(path)
    with socket.socket(socket.AF_UNIX) as successor:
        async with serving(backend, tmp_path, settings):
            path.unlink()
            successor.bind(str(path))
        assert path.is_socket()
    # It has ended without removing its socket.
    async with serving(backend, tmp_path, settings) as site:
        assert (await site.get("/api/v1/me", X_Forwarded_User="dana")).status == 200
    assert not path.exists()
    backend.close()


async def test_a_file_that_is_no_socket_is_not_replaced_by_one(realm: Path, tmp_path: Path) -> None:
    backend, path = BACKENDS[FILES](str(realm)), tmp_path / "notes.txt"
    path.write_text("Keep me.")
    settings = on_path(path)
    with pytest.raises(Misconfigured, match="cannot be opened"):
        async with serving(backend, tmp_path, settings):
            pass
    assert path.read_text() == "Keep me."
    backend.close()


async def test_requests_are_counted_by_route_and_status(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    for path in ("/api/v1/runs/wf-1", "/api/v1/runs/wf-2", "/no/such/path"):
        await program.get(path)
    count = site.registry.get_sample_value
    assert count("kingdom_web_requests_total", {"route": "/api/v1/runs/{id}", "status": "404"}) == 2
    assert count("kingdom_web_requests_total", {"route": "unknown", "status": "404"}) == 1
    assert count("kingdom_web_request_duration_seconds_count", {"route": "/api/v1/runs/{id}"}) == 2


async def test_a_body_that_is_too_large_is_refused(site: Site) -> None:
    headers = {"Authorization": f"Bearer {await site.token('ci')}", "Content-Type": "application/json"}
    large = io.BytesIO(b'{"type": "demo.big", "payload": {"text": "' + b"x" * 2_000_000 + b'"}}')
    async with site.client.post(f"{site.url}/api/v1/events", data=large, headers=headers) as response:
        assert (response.status, (await response.json())["code"]) == (413, "too_large")


async def test_a_request_body_that_is_not_json_is_refused_with_a_next_step(site: Site) -> None:
    token = await site.token("ci")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with site.client.post(f"{site.url}/api/v1/events", data=b"\xff{", headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["next"]
    plain = {**headers, "Content-Type": "text/plain"}
    async with site.client.post(f"{site.url}/api/v1/events", data=b'{"type": "a.b"}', headers=plain) as response:
        assert response.status == 400
