"""`kingdom web` as a process, and its place in `kingdom up`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from bench.servers import free_port
from kingdom.court.heartbeat import WEB
from tests.acceptance.terminal import Running, Terminal, eventually
from tests.patience import PATIENCE_SECONDS

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


class Realm:
    """A realm on one of the stores, with a web server on a port of its own."""

    def __init__(self, terminal: Terminal, settings: Path) -> None:
        self.terminal = terminal
        self.settings = settings
        self.configure(web={"address": f"127.0.0.1:{free_port()}"})

    def configure(self, **document: Any) -> None:
        self.settings.write_text(yaml.safe_dump(document))

    def words(self, *words: str) -> tuple[str, ...]:
        return (*words, "--config", str(self.settings))

    def run_json(self, *words: str) -> Any:
        return self.terminal.run_json(*self.words(*words))

    @contextmanager
    def serving(self, *words: str) -> Iterator[tuple[Running, httpx.Client]]:
        with self.terminal.start(*self.words(*words), "--json-logs") as running:
            (started,) = running.logs("web server started")
            with httpx.Client(base_url=started["url"], timeout=PATIENCE_SECONDS) as client:
                yield running, client


@pytest.fixture(params=["files", "postgres"])
def realm(request: pytest.FixtureRequest, tmp_path: Path) -> Realm:
    url = f"file:{tmp_path / 'realm'}" if request.param == "files" else request.getfixturevalue("dsn")
    return Realm(Terminal(tmp_path, url), tmp_path / "kingdom.yaml")


def sign_in(realm: Realm, client: httpx.Client) -> None:
    """Redeem an invite as the page does, which reads the secret from the fragment of the link."""
    link = urlsplit(realm.run_json("web", "invite", "dana", "--may", "look")["url"])
    assert client.get(f"{link.scheme}://{link.netloc}{link.path}").status_code == 200
    reply = client.post("/api/v1/session", json={"secret": link.fragment}, headers=SAME_ORIGIN)
    assert reply.json() == {"name": "dana", "may": ["look"], "generals": []}
    assert client.post("/api/v1/session", json={"secret": link.fragment}, headers=SAME_ORIGIN).status_code == 401


def test_a_server_signs_people_in_and_ends_its_streams_when_it_stops(realm: Realm) -> None:
    with realm.serving("web") as (running, client):
        assert client.get("/api/v1/runs").status_code == 401
        sign_in(realm, client)
        assert client.get("/api/v1/runs").json() == {"items": [], "next": None}
        with client.stream("GET", "/api/v1/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 1000"
            running.process.terminate()
            assert ": the server is stopping" in list(lines)
        assert running.ends() == 0
    # A session outlives the server.
    with realm.serving("web") as (_, again):
        again.cookies = client.cookies
        assert again.get("/api/v1/me").json()["name"] == "dana"
        assert [each["name"] for each in realm.run_json("web", "sessions", "list")] == ["dana"]
        realm.run_json("web", "sessions", "revoke", "dana")
        assert again.get("/api/v1/me").status_code == 401


def test_a_killed_server_leaves_a_link_that_the_next_one_redeems(realm: Realm) -> None:
    with realm.serving("web") as (running, _):
        running.process.kill()
    with realm.serving("web") as (_, client):
        sign_in(realm, client)


def test_up_serves_the_web_interface_unless_it_is_off(realm: Realm) -> None:
    with realm.serving("up", "--role", WEB) as (running, client):
        sign_in(realm, client)
        running.process.terminate()
        assert running.ends() == 0
    realm.configure(web=False)
    for words in (("web",), ("web", "invite", "dana"), ("web", "open")):
        refused = realm.terminal.run(*realm.words(*words))
        assert (refused.code, "web interface is off" in refused.err) == (2, True), refused
    with realm.terminal.start(*realm.words("up"), "--json-logs") as up:
        started = eventually(lambda: len(found := up.lines_about("role started")) >= 6 and found)
        assert WEB not in {line["role"] for line in started}
        up.process.terminate()
        assert up.ends() == 0
        assert not up.lines_about("web server started")
