"""The egress proxy: what it forwards, what it refuses, and that each refusal is needed.

Servers listen on loopback. One loopback address stands for the internet, and all others are private addresses.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kingdom.log_output import configure_logs
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.sandbox import egress, egress_rules
from kingdom.soldiers.sandbox.egress import Egress, EgressProxy
from kingdom.soldiers.sandbox.egress_ledger import EgressAttempt, EgressLimits, read_attempts
from tests.integration.soldiers.web import Web, make_certificate, serving
from tests.patience import PATIENCE_SECONDS

INTERNET, INNER = "127.0.0.2", "127.0.0.1"
NAMED, OTHER = "files.example.org", "evil.example.net"
PATIENT = EgressLimits(
    request_seconds=PATIENCE_SECONDS, connect_seconds=PATIENCE_SECONDS, resolve_seconds=PATIENCE_SECONDS
)


@contextmanager
def warnings() -> Iterator[list[EventDict]]:
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        configure_logs(json=True, level=logging.ERROR)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"), NAMED, OTHER)


@pytest.fixture
async def web(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Web]:
    monkeypatch.setattr(egress, "is_public", lambda address: address == INTERNET)
    async with serving(certificate, INTERNET, INNER) as web:
        yield web


class ProxiedClient:
    """A client that connects to servers through the egress proxy of a run, as programs do."""

    def __init__(self, folder: Path, certificate: Path, web_port: int, **options: Any) -> None:
        self.log = folder / "run.egress.jsonl"
        self._folder = folder
        self._context = ssl.create_default_context(cafile=certificate)
        self._port = web_port
        options = {"limits": PATIENT, "resolve": lambda _: [INTERNET], "port": web_port, **options}
        self._egress = Egress([NAMED], **options)

    def proxy(self, redaction: Redaction | None = None) -> EgressProxy:
        return self._egress.proxy(self._folder, self.log, redaction or Redaction())

    def attempts(self) -> list[EgressAttempt]:
        return list(read_attempts(self.log))

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(attempt.outcome, attempt.host, attempt.reason) for attempt in self.attempts()]

    async def fetch(
        self, proxy: EgressProxy, host: str = NAMED, *, port: int | None = None, server_name: str | None = None
    ) -> str:
        """Return the greeting of a server, or the first line of the proxy's answer if it refuses."""
        async with self.connected(proxy, host, port=port, server_name=server_name) as (reader, writer, answer):
            if writer is None:
                return answer
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            return (await reader.readline()).decode().strip()

    @asynccontextmanager
    async def connected(
        self, proxy: EgressProxy, host: str = NAMED, *, port: int | None = None, server_name: str | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter | None, str]]:
        """Provide a TLS connection to a host, or None and the answer of the proxy."""
        reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
        opened = False
        try:
            writer.write(f"CONNECT {host}:{port or self._port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0]
            if not answer.startswith("HTTP/1.1 200 "):
                yield reader, None, answer
                return
            try:
                await writer.start_tls(self._context, server_hostname=server_name or host)
            except (ssl.SSLError, OSError) as error:
                yield reader, None, str(error)
                return
            opened = True
            yield reader, writer, answer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            if opened:
                await self._until_closed()

    async def _until_closed(self) -> None:
        """Wait until the proxy has logged the end of every connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._count("closed") < self._count("opened"):  # noqa: ASYNC110 - a file sends no notification
                await asyncio.sleep(0.001)

    def _count(self, wanted: str) -> int:
        return sum(outcome == wanted for outcome, _, _ in self.outcomes())


@pytest.fixture
def client(tmp_path: Path, certificate: Path, web: Web) -> ProxiedClient:
    return ProxiedClient(tmp_path, certificate, web.port)


async def test_a_named_host_is_reached_and_every_attempt_is_logged(client: ProxiedClient) -> None:
    with warnings() as logs:
        async with client.proxy() as proxy:
            assert await client.fetch(proxy) == f"hello from {INTERNET}"
            assert await client.fetch(proxy, "FILES.example.org.", server_name=NAMED) == f"hello from {INTERNET}"
            assert "not in soldiers.egress" in await client.fetch(proxy, OTHER)
    assert [(each["host"], each["log_level"]) for each in logs] == [(OTHER, "warning")]
    opened, closed, _, _, refused = client.attempts()
    assert (opened.outcome, opened.host, opened.address) == ("opened", NAMED, INTERNET)
    assert (closed.outcome, closed.host, closed.address) == ("closed", NAMED, INTERNET)
    assert closed.sent > 300
    assert closed.received > 300
    assert (refused.outcome, refused.host) == ("refused", OTHER)
    assert client.log.stat().st_mode & 0o777 == 0o600
    assert not proxy.socket.exists()


async def test_a_host_that_is_not_named_is_reached_only_without_the_check_of_names(
    client: ProxiedClient, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.proxy() as proxy:
        assert await client.fetch(proxy, OTHER) == f"HTTP/1.1 403 {OTHER} is not in soldiers.egress of kingdom.yaml"
        assert web.connections == 0
        monkeypatch.setattr(egress_rules, "is_allowed", lambda *_: True)
        assert await client.fetch(proxy, OTHER) == f"hello from {INTERNET}"


@pytest.mark.parametrize("found", [[INNER], [INTERNET, INNER], [INNER, INTERNET]])
async def test_a_private_address_is_reached_only_without_the_check_of_addresses(
    tmp_path: Path, certificate: Path, web: Web, monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    client = ProxiedClient(tmp_path, certificate, web.port, resolve=lambda _: found)
    async with client.proxy() as proxy:
        assert await client.fetch(proxy) == f"HTTP/1.1 403 {NAMED} leads to {INNER}, which is not a public address"
        assert web.connections == 0
        monkeypatch.setattr(egress, "is_public", lambda _: True)
        assert await client.fetch(proxy) == f"hello from {found[0]}"


async def test_the_proxy_connects_to_the_address_that_it_checked_even_if_the_name_is_rebound(
    tmp_path: Path, certificate: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []

    def rebinding(_: str) -> list[str]:
        return [answers.pop(0)]

    client = ProxiedClient(tmp_path, certificate, web.port, resolve=rebinding)
    checked = Egress.addresses

    async def resolved_again(self: Egress, host: str) -> Sequence[str]:
        await checked(self, host)
        return rebinding(host)

    async with client.proxy() as proxy:
        answers[:] = [INTERNET, INNER]
        assert await client.fetch(proxy) == f"hello from {INTERNET}"
        assert "which is not a public address" in await client.fetch(proxy)
        answers[:] = [INTERNET, INNER]
        monkeypatch.setattr(Egress, "addresses", resolved_again)
        assert await client.fetch(proxy) == f"hello from {INNER}"


async def test_tls_for_another_name_is_forwarded_only_without_the_check_of_tls_names(
    client: ProxiedClient, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.proxy() as proxy:
        assert "UNRECOGNIZED_NAME" in (await client.fetch(proxy, server_name=OTHER)).upper().replace(" ", "_")
        assert web.received == []
        monkeypatch.setattr(egress, "server_name", lambda data: NAMED if data else None)
        assert await client.fetch(proxy, server_name=OTHER) == f"hello from {INTERNET}"
    reason = f"its TLS names another host than its CONNECT request: {OTHER}"
    assert client.outcomes()[0] == ("refused", NAMED, reason)


async def test_another_port_is_reached_only_if_it_is_the_allowed_port(
    tmp_path: Path, certificate: Path, web: Web
) -> None:
    strict = ProxiedClient(tmp_path, certificate, web.port, port=443)
    async with strict.proxy() as proxy:
        answer = await strict.fetch(proxy, port=web.port)
        assert answer == f"HTTP/1.1 403 port {web.port} is not allowed, only 443 is"
    client = ProxiedClient(tmp_path, certificate, web.port)
    async with client.proxy() as proxy:
        assert await client.fetch(proxy, port=web.port) == f"hello from {INTERNET}"


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (
            b"GET http://files.example.org/ HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 403 only https is forwarded, by CONNECT: use an",
        ),
        (b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n", b"HTTP/1.1 403 hosts are reached by their full name only"),
        (b"X" * 100_000, b""),
        (b"CONNECT", b""),
    ],
)
async def test_an_invalid_request_is_refused(client: ProxiedClient, request_: bytes, answer: bytes) -> None:
    async with client.proxy() as proxy:
        reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
        with suppress(OSError):
            writer.write(request_)
            writer.write_eof()
            response = b""
            response = await reader.read()
        writer.close()
    assert response.startswith(answer)
    assert bool(response) is bool(answer)


async def test_a_host_whose_address_cannot_be_found_is_reported(tmp_path: Path, certificate: Path, web: Web) -> None:
    def unknown(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    client = ProxiedClient(tmp_path, certificate, web.port, resolve=unknown)
    async with client.proxy() as proxy:
        answer = await client.fetch(proxy)
    assert answer == f"HTTP/1.1 502 the address of {NAMED} cannot be found: Name or service not known"
    assert [outcome for outcome, _, _ in client.outcomes()] == ["failed"]


async def test_a_secret_in_a_request_is_not_in_the_log(client: ProxiedClient) -> None:
    with warnings() as logs:
        async with client.proxy(Redaction({"hush-hush-hush"})) as proxy:
            await client.fetch(proxy, "hush-hush-hush.evil.example")
    assert "hush-hush" not in client.log.read_text() + str(logs)
    assert client.outcomes()[0][1].endswith(".evil.example")


async def limited(client: ProxiedClient) -> list[str]:
    """Send and receive on connections until they end; return the reasons."""
    async with client.proxy() as proxy, client.connected(proxy) as (reader, writer, answer):
        assert writer is not None, answer
        with suppress(OSError, EOFError):
            for _ in range(100):
                writer.write(b"echo " + b"x" * 10_000 + b"\n")
                await writer.drain()
                assert await reader.readuntil(b"\n")
    return [reason for outcome, _, reason in client.outcomes() if outcome == "closed"]


@pytest.mark.parametrize(
    ("name", "reason"), [("sent_bytes", "this run has sent more than 0 MiB"), ("received_bytes", "this run has rec")]
)
async def test_the_bytes_of_all_connections_of_a_run_together_are_limited(
    tmp_path: Path, certificate: Path, web: Web, name: str, reason: str
) -> None:
    few = ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, **{name: 100_000}))
    [how] = await limited(few)
    assert how.startswith(reason)
    # Another program of the run and a restarted host have the same limit.
    for client in (few, ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, **{name: 100_000}))):
        async with client.proxy() as proxy:
            assert (await client.fetch(proxy)).startswith(f"HTTP/1.1 403 {reason}")
    many = ProxiedClient(tmp_path / "other", certificate, web.port)
    assert await limited(many) == [""]


async def test_the_number_of_open_connections_of_a_run_is_limited(tmp_path: Path, certificate: Path, web: Web) -> None:
    client = ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, connections=1))
    async with client.proxy() as one, client.proxy() as two, client.connected(one) as (_, writer, _):
        assert writer is not None
        with pytest.raises((EOFError, OSError)):
            await client.fetch(two)
    async with client.proxy() as proxy:
        assert await client.fetch(proxy) == f"hello from {INTERNET}"
    assert ("refused", "", "this run has 1 open connections, which is the limit") in client.outcomes()


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"idle_seconds": 0.05}, "idle for too long"), ({"lifetime_seconds": 0.05}, "open for too long")],
)
async def test_a_connection_that_is_idle_or_open_for_too_long_is_closed(
    tmp_path: Path, certificate: Path, web: Web, limits: dict[str, Any], reason: str
) -> None:
    client = ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, **limits))
    async with client.proxy() as proxy, client.connected(proxy) as (reader, writer, _):
        if writer is not None:
            with suppress(OSError):
                await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    assert ("closed", NAMED, reason) in client.outcomes()


@pytest.mark.parametrize("begun", [b"", b"CONNECT files.example.org:%d HTTP/1.1\r\n\r\n"])
async def test_a_silent_client_is_disconnected(tmp_path: Path, certificate: Path, web: Web, begun: bytes) -> None:
    client = ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, request_seconds=0.05))
    async with client.proxy() as proxy:
        reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
        writer.write(begun and begun % web.port)
        with suppress(OSError):
            await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
    assert web.received == []


async def test_a_log_that_is_full_ends_the_connections_of_a_run(tmp_path: Path, certificate: Path, web: Web) -> None:
    client = ProxiedClient(tmp_path, certificate, web.port, limits=replace(PATIENT, log_bytes=1000))
    async with client.proxy() as proxy:
        for _ in range(20):
            await client.fetch(proxy, OTHER)
        assert "its connection log is full" in await client.fetch(proxy)
    assert 1000 <= client.log.stat().st_size < 1300
    assert web.connections == 0


async def test_nothing_is_left_when_a_proxy_is_closed(client: ProxiedClient) -> None:
    async with client.proxy() as proxy:
        reader, writer, _ = await client.connected(proxy).__aenter__()
        assert writer is not None
    with suppress(OSError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    assert client.outcomes()[-1] == ("closed", NAMED, "its program has ended")


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_arrives_while_a_proxy_closes_is_closed_too(client: ProxiedClient, turns: int) -> None:
    with socket.socket(socket.AF_UNIX) as arriving:
        async with client.proxy() as proxy:
            arriving.connect(str(proxy.socket))
            arriving.settimeout(0)
            for _ in range(turns):
                await asyncio.sleep(0)
        # The event loop may end with the proxy, so nothing may be left to it.
        with suppress(ConnectionError):
            assert arriving.recv(1) == b""
