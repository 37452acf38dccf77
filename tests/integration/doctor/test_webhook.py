import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.servers import LOOPBACK, free_port
from kingdom.bootstrap import open_bus
from kingdom.clock import utc_now
from kingdom.court.heartbeat import FileHeartbeatWriter
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.realm import Realm, read_realm
from kingdom.roles import declare_application
from tests.integration.doctor.scene import look, look_at, write_settings


def with_webhook(directory: Path, port: int, **more: Any) -> Path:
    webhook = {"secrets": ["hush"], "port": port, **more}
    github = {"token": "t", "logins": ["bot"], "api_url": "http://127.0.0.1:9", "webhook": webhook}
    return write_settings(directory, sentinel={"github": github})


@contextmanager
def occupied() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


@asynccontextmanager
async def sentinel_listening(file: Path) -> AsyncIterator[None]:
    """Receive webhooks as the Sentinel of these settings does."""
    realm = read_realm(file)
    application = declare_application(Realm())
    assert realm.sentinel.github is not None
    async with open_bus(realm.database_url, application.topology, application.kinds) as bus:
        receiver = WebhookReceiver(bus, realm.sentinel.github)
        await receiver.start()
        try:
            yield
        finally:
            await receiver.stop()


async def test_a_free_port_is_well(tmp_path: Path) -> None:
    found = await look("webhook-port", "webhook", config=with_webhook(tmp_path, free_port()))
    assert (found["webhook-port"].status, found["webhook"].status) == ("ok", "skipped")
    assert found["webhook"].found == "the Sentinel does not run"


async def test_an_occupied_port_is_reported_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The program on this port accepts connections and never answers.
    monkeypatch.setattr("kingdom.doctor.webhook._RESPONSE_SECONDS", 0.2)
    with occupied() as port:
        found = await look("webhook-port", "webhook", config=with_webhook(tmp_path, port))
    assert (found["webhook-port"].status, found["webhook"].status) == ("fail", "skipped")
    assert f"{LOOPBACK}:{port} is in use by process {os.getpid()} " in found["webhook-port"].found
    assert "set sentinel.github.webhook.port to another port" in found["webhook-port"].fix


async def test_an_address_that_this_machine_does_not_have_is_reported(tmp_path: Path) -> None:
    # No machine has an address of this block, which is reserved for documentation.
    for host in ("192.0.2.1", "nowhere.invalid"):
        report = await look_at("webhook-port", config=with_webhook(tmp_path, free_port(), host=host))
        assert (report.status, f"no address {host}" in report.found) == ("fail", True)
        assert report.fix == "set sentinel.github.webhook.host to 127.0.0.1"


async def test_a_sentinel_that_listens_takes_a_signed_ping(tmp_path: Path) -> None:
    file = with_webhook(tmp_path, free_port())
    async with sentinel_listening(file):
        found = await look("webhook-port", "webhook", config=file)
    assert [report.status for report in found.values()] == ["ok", "ok"]
    assert found["webhook"].found == "the Sentinel accepts a signed ping"


async def test_a_sentinel_with_other_secrets_is_reported(tmp_path: Path) -> None:
    port = free_port()
    async with sentinel_listening(with_webhook(tmp_path, port)):
        report = await look_at("webhook", config=with_webhook(tmp_path, port, secrets=["changed"]))
    assert (report.status, "other secrets" in report.found) == ("fail", True)


async def test_a_sentinel_that_runs_and_does_not_listen_is_reported(tmp_path: Path) -> None:
    file = with_webhook(tmp_path, free_port())
    async with sentinel_listening(file):
        pass
    await FileHeartbeatWriter(tmp_path / "realm", "sentinel").beat(utc_now())
    report = await look_at("webhook", config=file)
    assert (report.status, "does not listen" in report.found) == ("fail", True)


async def test_an_address_for_messages_without_a_listener_is_reported(tmp_path: Path) -> None:
    def with_receiver_at(port: int) -> Path:
        return write_settings(tmp_path, envoy={"webhook": {"url": f"http://{LOOPBACK}:{port}/hook", "secret": "s"}})

    report = await look_at("envoy-webhook", config=with_receiver_at(free_port()))
    assert (report.status, "no server listens" in report.found) == ("fail", True)
    with occupied() as port:
        assert (await look_at("envoy-webhook", config=with_receiver_at(port))).status == "ok"


async def test_webhooks_without_a_secret_are_reported(tmp_path: Path) -> None:
    found = await look("webhook-port", "webhook", config=with_webhook(tmp_path, free_port(), secrets=[]))
    assert (found["webhook-port"].status, found["webhook"].status) == ("fail", "skipped")
