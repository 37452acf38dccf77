"""A signed webhook is stored as an event before it is acknowledged. All others are refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from kingdom.backends.files import FilesBus
from kingdom.bus import Transaction
from kingdom.court import streams
from kingdom.court.sentinel.receiver import PATH, WebhookReceiver
from kingdom.court.sentinel.settings import GitHubSettings, GitHubWebhookSettings
from kingdom.errors import Misconfigured, Unavailable
from tests.integration.court.sentinel.scene import KINDS, US, Watch, github_settings, signed
from tests.patience import PATIENCE_SECONDS
from tests.unit.court.sentinel.bodies import commented, review_requested


async def test_a_signed_webhook_is_stored_as_an_event_before_it_is_acknowledged(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        assert await watch.post(receiver, "pull_request", review_requested()) == (202, "received")
        (event,) = await watch.events()
        assert event.type == "github.pr.review_requested"
        assert await watch.announced() == await watch.detected() == 1


async def test_a_delivery_counts_once_regardless_of_its_content(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        first = await watch.post(receiver, "pull_request", review_requested(), X_GitHub_Delivery="d-1")
        other = review_requested() | {"repository": {"id": 6, "full_name": "acme/other"}}
        again = await watch.post(receiver, "pull_request", other, X_GitHub_Delivery="d-1")
    assert (first, again) == ((202, "received"), (202, "seen"))
    assert len(await watch.events()) == 1


@pytest.mark.both_stores
async def test_concurrent_deliveries_of_one_activity_are_one_event(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        posts = [watch.post(receiver, "pull_request", review_requested()) for _ in range(10)]
        answers = await asyncio.gather(*posts)
    assert sorted(answers) == [(202, "received")] + [(202, "seen")] * 9
    assert len(await watch.events()) == await watch.announced() == 1


async def test_each_configured_secret_is_accepted_and_no_other(watch: Watch) -> None:
    body = b'{"zen": "Design for failure."}'
    async with watch.receiving(webhook={"secrets": ("new", "old")}) as receiver:
        for secret, status in (("new", 200), ("old", 200), ("older", 401), ("", 401)):
            sent = await watch.post(receiver, "ping", body, X_Hub_Signature_256=signed(body, secret))
            assert sent[0] == status


async def test_a_ping_is_answered_and_is_no_event(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        assert await watch.post(receiver, "ping", {"zen": "Keep it logically awesome."}) == (200, "pong")
        async with watch.session.get(receiver.url + "/healthz") as answer:
            assert answer.status == 200
    assert await watch.events() == []


async def test_a_refusal_reveals_nothing(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        answers = [
            await watch.post(receiver, "pull_request", review_requested(), X_Hub_Signature_256="sha256=" + "0" * 64),
            await watch.post(receiver, "pull_request", b"{", X_GitHub_Event="pull_request"),
            await watch.post(receiver, "pull_request", review_requested(), Content_Type="text/plain"),
            await watch.post(receiver, "pull_request", review_requested(), X_GitHub_Delivery="../../etc/passwd"),
        ]
    assert answers == [
        (401, "not signed"),
        (400, "not understood"),
        (415, "send application/json"),
        (400, "not understood"),
    ]
    assert await watch.events() == []


async def test_a_large_body_is_refused_before_it_is_read(watch: Watch) -> None:
    async with watch.receiving(webhook={"body_bytes_max": 1000}) as receiver:
        assert await watch.post(receiver, "pull_request", b"x" * 2000) == (413, "too large")

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        headers = {"X-Hub-Signature-256": signed(b""), "Content-Type": "application/json"}
        async with watch.session.post(receiver.url + PATH, data=pieces(), headers=headers) as answer:
            assert answer.status == 413


async def test_a_body_that_does_not_arrive_in_time_is_refused(watch: Watch) -> None:
    async with watch.receiving(webhook={"body_seconds": 0.2}) as receiver:
        place = urlsplit(receiver.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n"
        writer.write(f"{head}X-Hub-Signature-256: {signed(b'')}\r\n\r\nhalf".encode())
        line = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
        assert b" 408 " in line
        writer.close()
        await writer.wait_closed()


async def test_unrelated_and_own_activity_is_acknowledged_without_an_event(watch: Watch) -> None:
    async with watch.receiving() as receiver:
        for event, document in (
            ("push", {"ref": "refs/heads/main"}),
            ("pull_request", review_requested("somebody")),
            ("issue_comment", commented("hello")),
            ("issue_comment", commented(f"@{US} done", by=US)),
        ):
            assert await watch.post(receiver, event, document) == (202, "dropped")
    assert await watch.events() == []


class _Away(FilesBus):
    """A store that cannot be reached."""

    def transaction(self, hold: object = (), **_: object) -> AbstractAsyncContextManager[Transaction]:  # type: ignore[override]
        raise Unavailable(f"the store is away, and so are {hold}")


class _Stuck(FilesBus):
    """A store that does not answer."""

    def transaction(self, hold: object = (), **_: object) -> AbstractAsyncContextManager[Transaction]:  # type: ignore[override]
        del hold
        return _Never()


class _Never(AbstractAsyncContextManager[Transaction]):
    async def __aenter__(self) -> Transaction:
        await asyncio.Event().wait()
        raise AssertionError("it was not cut off")

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("store", [_Away, _Stuck])
async def test_without_its_store_nothing_is_acknowledged(
    realm: Path, session: aiohttp.ClientSession, store: type[FilesBus]
) -> None:
    async with store(str(realm), streams.TOPOLOGY, KINDS) as bus:
        receiver = WebhookReceiver(bus, github_settings("http://nowhere", webhook={"store_seconds": 0.2}))
        await receiver.start()
        watch = Watch(bus, None, session)  # type: ignore[arg-type]
        try:
            assert await watch.post(receiver, "pull_request", review_requested()) == (503, "try again later")
            assert await watch.post(receiver, "ping", {}) == (200, "pong")
        finally:
            await receiver.stop()


async def test_a_receiver_without_a_secret_does_not_start(watch: Watch) -> None:
    for webhook in (None, GitHubWebhookSettings(secrets=())):
        with pytest.raises(Misconfigured, match="secret"):
            WebhookReceiver(watch.bus, GitHubSettings(token="t", logins=(US,), webhook=webhook))  # noqa: S106


class Strangers:
    """Connections of strangers that send something and stay open."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, receiver: WebhookReceiver, words: bytes = b"") -> asyncio.StreamReader:
        """Connect, and return the response."""
        address = urlsplit(receiver.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(words)
        self._writers.append(writer)
        return reader

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
def strangers() -> Strangers:
    return Strangers()


def unsigned(size: int) -> bytes:
    """Return a webhook of a stranger that lacks its last byte."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n"
    return f"{head}X-Hub-Signature-256: sha256={'0' * 64}\r\n\r\n".encode() + b" " * (size - 1)


async def test_bodies_of_strangers_take_little_memory_and_hold_up_no_delivery(
    watch: Watch, strangers: Strangers
) -> None:
    size = 1_000_000
    async with watch.receiving(webhook={"body_bytes_max": size, "body_seconds": PATIENCE_SECONDS}) as receiver:
        held = [await strangers.connect(receiver, unsigned(size)) for _ in range(10)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = asyncio.as_completed([asyncio.create_task(stranger.readline()) for stranger in held])
            # The receiver keeps at most two of these connections.
            for _ in range(8):
                assert b" 408 " in await next(answers)
            assert await watch.post(receiver, "pull_request", review_requested()) == (202, "received")
            whole = await strangers.connect(receiver, unsigned(size) + b" ")
            assert b" 401 " in await whole.readline()
        strangers.leave()


async def test_connections_of_strangers_take_few_places_and_hold_up_no_delivery(
    watch: Watch, strangers: Strangers
) -> None:
    async with watch.receiving() as receiver:
        held = [await strangers.connect(receiver) for _ in range(150)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for stranger in held[:50]:
                assert await stranger.read() == b""
            assert await watch.post(receiver, "pull_request", review_requested()) == (202, "received")
        assert not held[-1].at_eof()
        strangers.leave()


async def test_an_unsigned_request_is_refused_before_its_body_is_read(watch: Watch, strangers: Strangers) -> None:
    async with watch.receiving() as receiver:
        bare = unsigned(1_000_000).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        for head in (bare.replace(b"X-Hub-Signature-256", b"X-Other"), bare.replace(b"sha256=00", b"sha256=")):
            stranger = await strangers.connect(receiver, head)
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert b" 401 " in await stranger.readline()
        strangers.leave()
