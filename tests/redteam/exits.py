"""Every way out of the host other than the model, and attempts to use it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from kingdom.court.envoy import slack_messenger
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.soldiers import settings
from kingdom.soldiers.sandbox import egress, egress_rules
from kingdom.soldiers.sandbox.egress import Egress
from kingdom.soldiers.sandbox.egress_rules import EgressRefused, check_host, parse_allowed_name
from tests.integration.court.envoy.scene import DEV, slack_settings
from tests.integration.court.envoy.test_slack_messenger import post, post_acked
from tests.integration.soldiers.test_egress import INNER, INTERNET, NAMED, OTHER, ProxiedClient
from tests.integration.soldiers.web import Web, make_certificate, serving
from tests.integration.standins.slack_scene import workspace
from tests.patience import PATIENCE_SECONDS
from tests.redteam.defended import AttemptClass, Ground
from tests.unit.soldiers.test_client_hello import SNI, extension, hello, real, records

EXITS = AttemptClass("exit")
_WILD = "*.example.org"
_ECH = 0xFE0D


@EXITS.stopped_by(
    "egress proxy: only names that the operator lists",
    {
        "another name": ("evil.example.net", NAMED),
        "a subdomain": (f"evil.{NAMED}", NAMED),
        "the parent domain": ("example.org", NAMED),
        "a name that begins with the allowed one": (f"{NAMED}.evil.example.net", NAMED),
        "a name that ends with the allowed one": (f"x{NAMED}", NAMED),
        "the domain of a wildcard itself": ("example.org", _WILD),
        "a domain that ends like a wildcard": ("evilexample.org", _WILD),
        "a name that contains the domain of a wildcard": ("example.org.evil.net", _WILD),
    },
    quick=True,
)
async def reach_a_host_that_is_not_named(ground: Ground, case: tuple[str, str]) -> str:
    host, listed = case
    ground.remove(egress_rules, "is_allowed", lambda *_: True)
    with suppress(EgressRefused):
        return check_host(host, 443, [parse_allowed_name(listed)])
    return ""


@EXITS.stopped_by(
    "egress proxy: names only",
    {
        "an address": "93.184.216.34",
        "a short one": "127.1",
        "a number": "1.0x7f000001",
        "a name of this machine": "localhost",
    },
)
async def reach_an_address_instead_of_a_name(ground: Ground, host: str) -> str:
    ground.remove(egress_rules, "canonical_name", lambda text: text)
    ground.remove(egress_rules, "is_allowed", lambda *_: True)
    with suppress(EgressRefused):
        return check_host(host, 443, [host])
    return ""


@EXITS.stopped_by(
    "the settings refuse names that allow too much",
    {name: name for name in ("*", "*.com", "10.0.0.1", "https://evil.example", "evil.example:8080")},
)
async def allow_too_many_hosts(ground: Ground, name: str) -> str:
    ground.remove(settings, "parse_allowed_name", lambda text: text)
    with suppress(ValueError):
        return settings.SoldierSettings(egress=(name,)).egress[0]
    return ""


@EXITS.stopped_by(
    "egress proxy: no address but public ones",
    {
        name: name
        for name in (
            *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),  # noqa: S104 - an address to be refused
            *("168.63.129.16", "192.0.0.192", "224.0.0.1", "::1", "fe80::1", "fd00:ec2::254", "::ffff:10.0.0.1"),
            *("64:ff9b::a00:1", "2002:a00:1::1", "2001:0:a00:1::1"),
        )
    },
)
async def a_name_that_resolves_to_a_private_address(ground: Ground, address: str) -> str:
    ground.remove(egress, "is_public", lambda _: True)
    client = Egress([NAMED], resolve=lambda _: [address])
    with suppress(EgressRefused):
        return str((await client.addresses(NAMED))[0])
    return ""


@EXITS.stopped_by("egress proxy: every address of a name must be public")
async def a_name_with_a_private_and_a_public_address(ground: Ground) -> str:
    async with _proxied_client(ground, resolve=lambda _: [INNER, INTERNET]) as (client, _):
        ground.remove(egress, "is_public", lambda _: True)
        async with client.proxy() as proxy:
            return _reached(await client.fetch(proxy))


@EXITS.stopped_by("egress proxy: it connects to the address that it has checked")
async def a_name_that_resolves_differently_the_second_time(ground: Ground) -> str:
    answers = [INTERNET, INNER]

    def rebinding(_: str) -> list[str]:
        return [answers.pop(0) if len(answers) > 1 else answers[0]]

    checked = Egress.addresses

    async def resolved_again(self: Egress, host: str) -> Sequence[str]:
        await checked(self, host)
        return rebinding(host)

    ground.remove(Egress, "addresses", resolved_again)
    async with _proxied_client(ground, resolve=rebinding) as (client, _), client.proxy() as proxy:
        answer = _reached(await client.fetch(proxy))
    return answer if INNER in answer else ""


@EXITS.stopped_by(
    "egress proxy: TLS must ask for the same name",
    {
        "another name": real(OTHER),
        "no name": real(None),
        "a hidden name": records(hello(SNI, extension(_ECH, b"\0" * 8))),
        "no TLS": b"GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
    },
)
async def speak_with_another_host_behind_the_same_address(ground: Ground, first: bytes) -> str:
    ground.remove(egress, "server_name", lambda data: NAMED if data else None)
    async with _proxied_client(ground) as (client, web), client.proxy() as proxy:
        reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
        writer.write(f"CONNECT {NAMED}:{web.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        writer.write(first)
        writer.write_eof()
        with suppress(OSError):
            await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
    return "opened" if any(outcome == "opened" for outcome, _, _ in client.outcomes()) else ""


@EXITS.stopped_by("egress proxy: port 443 only")
async def another_port(ground: Ground) -> str:
    async with (
        _proxied_client(ground, **({"port": 443} if ground.is_defended else {})) as (client, web),
        client.proxy() as proxy,
    ):
        return _reached(await client.fetch(proxy, port=web.port))


@EXITS.stopped_by(
    "egress proxy: CONNECT and nothing else",
    {"plain http": f"GET http://{NAMED}/?secret HTTP/1.1", "a line within": f"CONNECT {NAMED}:443\n HTTP/1.1"},
)
async def a_request_that_is_not_connect(ground: Ground, line: str) -> str:
    head = f"{line}\r\n\r\n".encode()
    asked = egress_rules.parse_connect_request if ground.is_defended else _target_plainly
    with suppress(EgressRefused):
        return str(asked(head))
    return ""


@EXITS.stopped_by("messages to Slack forbid it to unfurl links", {"a message": "message", "a whisper": "whisper"})
async def have_slack_fetch_an_address(ground: Ground, how: str) -> str:
    ground.remove(slack_messenger, "_NOTHING_FETCHED", {})
    async with workspace(ground.folder / "slack.json") as slack:
        await slack.do("channels", name=DEV)
        place = SlackMessenger(slack_settings(slack.url))
        await place.open()
        try:
            where = await post_acked(place, post("https://evil.example/?secret"))
            if how == "whisper":
                person = await slack.person("dana", in_channel=where["channel"])
                await place.whisper(where["channel"], where["ts"], person, "https://evil.example/?secret")
        finally:
            await place.close()
        name = "chat.postMessage" if how == "message" else "chat.postEphemeral"
        calls = await slack.calls(name)
    assert calls
    return "" if all(call["unfurl_links"] is False is call["unfurl_media"] for call in calls) else "it may fetch"


def _target_plainly(head: bytes) -> tuple[str, int]:
    return head.split(b"\r\n")[0].decode(), 443


def _reached(answer: str) -> str:
    return answer if answer.startswith("hello from") else ""


@asynccontextmanager
async def _proxied_client(ground: Ground, **options: object) -> AsyncIterator[tuple[ProxiedClient, Web]]:
    """Provide a proxy with servers behind it. One loopback address plays the internet."""
    certificate = make_certificate(ground.folder, NAMED, OTHER)
    ground.patch.setattr(egress, "is_public", lambda address: address == INTERNET)
    async with serving(certificate, INTERNET, INNER) as web:
        yield ProxiedClient(ground.folder, certificate, web.port, **options), web
