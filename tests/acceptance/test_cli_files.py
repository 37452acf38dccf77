"""The command line on a store of files: no server is needed, and every file can be read."""

import json
import signal
from pathlib import Path

import pytest

from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.terminal import SHOP, Terminal, eventually


@pytest.fixture
def laptop(tmp_path: Path, realm: Path) -> Terminal:
    return Terminal(tmp_path, f"file:{realm}")


def publish(laptop: Terminal, payload: object, *words: str) -> str:
    done = laptop.run_json(
        "bus", "publish", "--app", SHOP, "--type", "OrderPlaced", "--payload", json.dumps(payload), *words
    )
    event_id: str = done["eventId"]
    return event_id


def test_reading_a_missing_store_creates_no_store_and_says_what_to_do(laptop: Terminal, realm: Path) -> None:
    done = laptop.run("bus", "stats")
    assert done.code == 1
    assert "there is no store at" in done.err
    assert "`kingdom init` creates a realm" in done.err
    assert not realm.exists()


def test_settings_without_a_store_are_reported_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "KINGDOM_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kingdom.yaml").write_text("database_url: file:here\n")
    done = InProcessCli(capsys, monkeypatch)("ps")
    assert (done.code, "/here: `kingdom up` or `kingdom send` creates it" in done.err) == (1, True), done.err


def test_an_event_is_a_file_until_a_worker_has_handled_it(laptop: Terminal, realm: Path) -> None:
    event_id = publish(laptop, {"order": 7})
    (file,) = realm.glob("bus/streams/orders/pending/*.json")
    shown = json.loads(file.read_text())
    assert (shown["eventId"], shown["payload"]) == (event_id, {"order": 7})
    with laptop.worker() as worker:
        eventually(lambda: [*realm.glob("bus/streams/orders/done/*.jsonl")])
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
    assert not file.exists()
    assert "order.placed" in (realm / "logs/events.log").read_text()
    assert laptop.run_json("bus", "why", event_id)[0]["status"] == "DONE"


def test_a_dead_letter_is_listed_patched_and_redriven(laptop: Terminal, realm: Path) -> None:
    event_id = publish(laptop, {"fail": "no such customer"})
    with laptop.worker() as worker:
        (file,) = eventually(lambda: [*realm.glob("bus/streams/orders/dead/*.json")])
        assert "no such customer" in file.read_text()
        (letter,) = laptop.run_json("bus", "dead", "list")
        assert letter["eventId"] == event_id
        patched = laptop.run("bus", "dead", "patch", event_id, "--stream", "orders", "--payload", '{"order": 1}')
        assert patched.code == 0, patched.err
        assert laptop.run("bus", "redrive", event_id).code == 0
        eventually(lambda: [*realm.glob("bus/streams/orders/done/*.jsonl")])
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0


def test_everything_moves_into_a_database_and_back(laptop: Terminal, terminal: Terminal, tmp_path: Path) -> None:
    publish(laptop, {"order": 1})
    publish(laptop, {"order": 2}, "--delay", "1h")
    there, back = tmp_path / "there.jsonl", tmp_path / "back.jsonl.gz"
    assert laptop.run_json("storage", "export", str(there))["exported"]["openEvents"] == 2
    assert terminal.run_json("storage", "import", str(there))["imported"]["openEvents"] == 2
    assert terminal.run_json("storage", "export", str(back))["exported"]["openEvents"] == 2
    home = Terminal(tmp_path, f"file:{tmp_path / 'home'}")
    assert home.run_json("storage", "import", str(back))["imported"]["openEvents"] == 2
    assert [row["pending"] for row in home.run_json("bus", "stats")] == [2]


def test_a_store_on_another_host_is_refused(tmp_path: Path) -> None:
    done = Terminal(tmp_path, "file://elsewhere/realm").run("bus", "stats")
    assert done.code == 2
    assert "must be on this host, not on elsewhere" in done.err


def test_sending_an_event_outside_of_a_realm_creates_no_realm(cli: InProcessCli, tmp_path: Path) -> None:
    refused = cli("send", "--type", "demo.hello")
    assert (refused.code, "`kingdom init` creates a realm" in refused.err) == (1, True)
    assert list(tmp_path.iterdir()) == []
    assert cli("send", "--type", "demo.hello", "--database-url", "file:here").code == 0


def test_in_a_subdirectory_of_a_realm_the_error_names_the_directory_of_the_realm(
    cli: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kingdom.yaml").touch()
    (tmp_path / "deep" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "inside")
    result = cli("ps")
    assert (result.code, f"run this there, or with --config {tmp_path / 'kingdom.yaml'}" in result.err) == (1, True)
