"""Every example runs as its first lines describe, on a store of files, with the scripted agent."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.servers import free_port
from examples import letters
from examples.bank import Bank
from examples.trading.exchange import read_book
from examples.trading.push_service import read_pushes
from examples.trading.store import create_tables
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus import Envelope, Worker
from tests.acceptance.terminal import ROOT, Terminal, eventually
from tests.patience import PATIENCE_SECONDS

EXAMPLES = ROOT / "examples"
# Which test runs which example. Every example must be listed here.
RUN_HERE = {
    "bank.py": "test_an_order_is_remembered_and_charged_for_once",
    "gen-triage": "test_a_general_and_two_templates_work_as_described",
    "hello.yaml": "test_a_general_and_two_templates_work_as_described",
    "letters.py": "test_a_member_gets_one_letter",
    "orders.py": "test_an_order_is_remembered_and_charged_for_once",
    "trading": "test_a_signal_becomes_one_order_and_its_owner_gets_a_push",
    "release-notes.yaml": "test_a_general_and_two_templates_work_as_described",
}
ROLES = ("king", "general", "soldiers")


def test_every_example_is_run() -> None:
    there = {path.name for path in EXAMPLES.iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert there == RUN_HERE.keys()
    assert set(RUN_HERE.values()) <= globals().keys()


def git(*words: str | Path) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def repository(place: Path) -> Path:
    who = ("-c", "user.name=anna", "-c", "user.email=anna@localhost")
    git("init", "--quiet", "--initial-branch", "main", place)
    git("-C", place, *who, "commit", "--quiet", "--allow-empty", "--message", "Begin")
    return place


def test_a_general_and_two_templates_work_as_described(tmp_path: Path) -> None:
    realm, config = tmp_path / "realm", ("--config", str(tmp_path / "kingdom.yaml"))
    Path(config[1]).write_text("database_url: file:realm\n")
    terminal = Terminal(tmp_path, f"file:{realm}")
    roles = (word for name in ROLES for word in ("--role", name))
    with terminal.start("up", "--json-logs", *config, *roles):
        terminal.run_json("general", "install", "examples/gen-triage")
        terminal.run_json("git", "create", "app", str(repository(tmp_path / "app")))
        terminal.run_json("template", "create", "examples/hello.yaml")
        terminal.run_json("template", "create", "examples/release-notes.yaml")
        eventually(lambda: list(realm.glob("state/hosts/*/*.json")))

        hello = terminal.run_json("workflow", "create", "hello", "--start", "--wait")
        assert (hello["status"], len(hello["works"])) == ("COMPLETED", 2)

        asking = terminal.run("workflow", "create", "release-notes", "--start", "--wait", "--json")
        assert (asking.code, asking.document["status"]) == (4, "AWAITING"), asking.err
        notes = terminal.run_json("workflow", "resume", asking.document["id"], "--reply", "minor", "--wait")
        assert notes["status"] == "COMPLETED"
        diff = terminal.run("workflow", "diff", notes["id"]).out
        assert {"+- Begin", "+This is a minor release."} <= set(diff.splitlines())

        bug = json.dumps({"title": "No way in", "area": "login", "text": "Mondays!"})
        event = terminal.run_json("event", "send", "--type", "bug.reported", "--payload", bug, "--wait", *config)
        assert event["status"] == "completed"
        (done,) = (realm / "queue" / "tasks" / "completed").glob("*.json")
        assert json.loads(done.read_text())["priority"] == "high"
        result = json.loads((realm / "state" / "results" / done.name).read_text())
        assert result["details"] == {"urgency": "high"}
        learned = realm / "generals" / "gen-triage" / "memory" / "elsewhere.md"
        eventually(lambda: learned.exists() and learned)
        assert "Logins fail on Mondays" in learned.read_text()


async def test_a_member_gets_one_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = letters.app
    async with open_bus(f"file:{tmp_path / 'realm'}", app.topology, app.kinds) as bus:
        worker = Worker(bus, app.dispatcher, app.topology.names())
        running = asyncio.create_task(worker.run())
        for name in ("anna", "ben", "anna"):
            async with bus.transaction() as transaction:
                await transaction.publish(Envelope(type="MemberJoined", payload={"name": name}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await operations_of(bus).stats():  # noqa: ASYNC110 - an idle store sends no notification
                await asyncio.sleep(0.05)
        worker.stop()
        await running
    written = [path.read_text() for path in (tmp_path / "letters").iterdir()]
    assert sorted(written) == ["Dear anna, welcome!\n", "Dear ben, welcome!\n"]
    welcomed = tmp_path / "realm" / "members" / "welcomed"
    assert {path.name for path in welcomed.iterdir()} == {"anna.json", "ben.json"}


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank(0) as bank:
        thread = threading.Thread(target=bank.serve_forever)
        thread.start()
        yield bank
        bank.shutdown()
        thread.join()


def test_an_order_is_remembered_and_charged_for_once(tmp_path: Path, bank: Bank) -> None:
    store, app = tmp_path / "realm", "examples.orders:app"
    terminal = Terminal(tmp_path, f"file:{store}")
    address = {"BANK_URL": f"http://127.0.0.1:{bank.server_port}"}
    order = json.dumps({"id": "order-1", "amount": 42})
    publish = ("bus", "publish", "--app", app, "--type")
    terminal.run_json(*publish, "OrderPlaced", "--key", "order-1", "--payload", order)
    # Another caller requests the same payment.
    terminal.run_json(*publish, "PaymentDue", "--payload", order)
    with terminal.worker(app=app, environment=address):
        eventually(lambda: not waiting(store) and "idle")
    assert list(bank.charges.values()) == [{"amount": 42}]
    assert [path.name for path in (store / "orders" / "placed").iterdir()] == ["order-1.json"]


def test_a_signal_becomes_one_order_and_its_owner_gets_a_push(tmp_path: Path, dsn: str) -> None:
    asyncio.run(create_tables(dsn))
    exchange, push = free_port(), free_port()
    environment = {
        **os.environ,
        "DATABASE_URL": dsn,
        "EXCHANGE_URL": f"http://127.0.0.1:{exchange}",
        "PUSH_URL": f"http://127.0.0.1:{push}",
    }

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *words]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)

    def trading(*words: str) -> str:
        command = [sys.executable, "-m", "examples.trading", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    with (tmp_path / "log").open("w") as log:
        started = [
            start("examples.trading.exchange", "--book", str(tmp_path), "--port", str(exchange)),
            start("examples.trading.push_service", "--log", str(tmp_path), "--port", str(push)),
            start("examples.trading", "work", "--metrics-port", "0"),
        ]
        try:
            trading("switch", "KRW-BTC", "on")
            assert trading("signal", "KRW-BTC", "BUY", "10000").startswith("intent ")
            eventually(lambda: "attempt 1 PREPARED" in trading("show") and "held back")
            assert "KRW-BTC is stopped: kill switch" in trading("show")
            trading("switch", "KRW-BTC", "off")
            eventually(lambda: trading("show") == "KRW-BTC intent FILLED attempt 1 ACKED\n" and "filled")
            eventually(lambda: len(read_pushes(tmp_path)) == 4 and "pushed")
            lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
            (address,) = [line["address"] for line in lines if line.get("event") == "metrics served"]
            metrics = httpx.get(address).text
            assert 'everbit_outbox_pending{stream="everbit.trade.command"}' in metrics
            assert 'everbit_outbox_processed_total{result="done",stream="everbit.trade.event"} 2.0' in metrics
        finally:
            for process in started:
                process.terminate()
                process.communicate()
    texts = [push["text"] for push in read_pushes(tmp_path)]
    assert texts == [f"KRW-BTC: {what}" for what in ("KillSwitchChanged",) * 2 + ("OrderAccepted", "OrderFilled")]
    assert [line["what"] for line in read_book(tmp_path) if line["what"] == "order"] == ["order"]


def waiting(store: Path) -> list[Path]:
    streams = store / "bus" / "streams"
    return [path for state in ("pending", "processing") for path in streams.glob(f"*/{state}/*.json")]
