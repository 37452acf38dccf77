import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateBouncer
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.store import open_rows, statuses
from tests.acceptance.terminal import SHOP, Terminal, eventually
from tests.patience import PATIENCE_SECONDS

LOG_FIELDS = {"traceId", "eventId", "stream", "eventType", "aggregateType", "aggregateId"}
BACKLOG = ("pending", "processing", "dead", "oldest_pending_seconds")
PUBLISH = ("bus", "publish", "--app", SHOP, "--type", "OrderPlaced")


def orders(terminal: Terminal, count: int, **payload: object) -> list[str]:
    lines = "".join(json.dumps({"payload": payload}) + "\n" for _ in range(count))
    done = terminal.run(*PUBLISH, "--file", "-", "--json", text=lines)
    assert done.code == 0, done.err
    return [document["eventId"] for document in done.documents]


def test_one_terminal_publishes_another_handles_and_a_third_shows(terminal: Terminal, dsn: str) -> None:
    with terminal.worker() as worker, terminal.start("bus", "tail", "-f", "--from", "start", "--json") as tail:
        published = terminal.run_json(*PUBLISH, "--payload", '{"order": 7}')
        entry = json.loads(tail.wait_for_lines(1)[0])
        assert (entry["type"], entry["actor"], entry["data"]) == ("order.placed", "shop", {"order": 7})
        eventually(lambda: statuses(dsn)[published["eventId"]] == "DONE" and "done")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
        assert worker.lines_about("ended")[0]["cut_off"] is False


def test_every_log_line_of_a_delivery_names_its_event(terminal: Terminal) -> None:
    with terminal.worker() as worker:
        published = terminal.run_json(*PUBLISH, "--aggregate", "order/7", "--payload", '{"fail": "never"}')
        (refusal,) = worker.logs("not done")
        lines = [*worker.lines_about("placing"), *worker.lines_about("placing, says the standard library"), refusal]
    assert len(lines) >= 3
    for line in lines:
        assert set(line) >= LOG_FIELDS
        assert line["eventId"] == published["eventId"]
        assert (line["stream"], line["eventType"]) == ("orders", "OrderPlaced")
        assert (line["aggregateType"], line["aggregateId"]) == ("order", "7")
        assert len(line["traceId"]) == 32


def test_the_metrics_endpoint_serves_backlog_and_work(terminal: Terminal) -> None:
    orders(terminal, 2)
    orders(terminal, 1, fail="never")
    with terminal.worker("--metrics-port", "0", "--stream", "orders") as worker:
        (served,) = worker.logs("metrics served")
        worker.logs("not done")

        def families() -> dict[str, Any] | bool:
            text = httpx.get(served["address"]).text
            found = {family.name: family for family in text_string_to_metric_families(text)}
            totals = [s for s in found["kingdom_outbox_processed"].samples if s.name.endswith("_total")]
            settled = {sample.labels["result"]: sample.value for sample in totals}
            return settled == {"done": 2, "dead": 1} and found["kingdom_outbox_dead"].samples != [] and found

        found = eventually(families)
        for name in BACKLOG:
            assert [sample.labels for sample in found[f"kingdom_outbox_{name}"].samples] == [{"stream": "orders"}]
        durations = found["kingdom_outbox_handler_duration_seconds"].samples
        (count,) = [s for s in durations if s.name.endswith("_count")]
        assert count.labels == {"stream": "orders", "eventType": "OrderPlaced"}
        assert count.value >= 3
        assert served["address"].startswith("http://127.0.0.1:")


def test_the_metrics_of_the_bus_get_the_prefix_of_the_environment(terminal: Terminal) -> None:
    orders(terminal, 1)
    environment = {"KINGDOM_METRICS_PREFIX": "everbit"}
    with terminal.worker("--metrics-port", "0", "--stream", "orders", environment=environment) as worker:
        (served,) = worker.logs("metrics served")
        counted = 'everbit_outbox_processed_total{result="done",stream="orders"} 1.0'
        text = eventually(lambda: counted in (text := httpx.get(served["address"]).text) and text)
    for name in BACKLOG:
        assert f'everbit_outbox_{name}{{stream="orders"}}' in text
    assert "everbit_outbox_handler_duration_seconds_bucket" in text
    assert "kingdom_outbox" not in text


@pytest.mark.parametrize(
    "words", [("bus", "work", SHOP), ("role", "engine"), ("up",), ("role", "king"), ("role", "general")]
)
def test_a_metrics_port_in_use_is_reported_in_one_sentence(cli: InProcessCli, words: tuple[str, ...]) -> None:
    Path("kingdom.yaml").write_text("database_url: file:realm\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli(*words, "--metrics-port", str(port))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"kingdom: metrics cannot be served on 127.0.0.1:{port} (")
    assert done.err.endswith("choose another port\n")


def test_the_first_signal_lets_a_running_handler_finish(terminal: Terminal, dsn: str, tmp_path: Path) -> None:
    (event,) = orders(terminal, 1, until=str(tmp_path / "go"))
    with terminal.worker() as worker:
        worker.logs("placing")
        worker.process.send_signal(signal.SIGTERM)
        worker.logs("stopping")
        (late,) = orders(terminal, 1)
        assert worker.process.poll() is None
        (tmp_path / "go").touch()
        assert worker.ends() == 0
    assert statuses(dsn) == {event: "DONE", late: "PENDING"}
    assert [row["attempt_count"] for row in open_rows(dsn)] == [0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_cancels_handlers_without_counting_their_attempts(
    terminal: Terminal, dsn: str, tmp_path: Path, number: signal.Signals
) -> None:
    orders(terminal, 3, until=str(tmp_path / "never"))
    with terminal.worker(last_wait=PATIENCE_SECONDS) as worker:
        worker.logs("placing")
        worker.process.send_signal(number)
        worker.logs("stopping")
        worker.process.send_signal(number)
        assert worker.ends() == 1
        assert worker.lines_about("ended")[0]["cut_off"] is True
    assert [(row["status"], row["attempt_count"], row["crash_count"]) for row in open_rows(dsn)] == [
        ("PENDING", 0, 0)
    ] * 3


def test_the_end_of_the_grace_period_cancels_handlers_without_counting_their_attempts(
    terminal: Terminal, dsn: str, tmp_path: Path
) -> None:
    orders(terminal, 2, until=str(tmp_path / "never"))
    with terminal.worker("--grace", "100ms") as worker:
        worker.logs("placing")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
    assert [(row["status"], row["attempt_count"]) for row in open_rows(dsn)] == [("PENDING", 0)] * 2


def test_a_handler_that_blocks_the_event_loop_cannot_prevent_the_end_of_its_process(terminal: Terminal) -> None:
    orders(terminal, 1, block=PATIENCE_SECONDS)
    with terminal.worker(last_wait=0.1) as worker:
        worker.logs("placing")

        def insist() -> str | bool:
            # The process may receive two signals in quick succession as one, so send more until it ends.
            worker.process.send_signal(signal.SIGTERM)
            return worker.process.poll() is not None and "ended"

        eventually(insist)
        assert worker.ends() == 128 + signal.SIGTERM


def test_only_the_chosen_streams_are_worked_on(terminal: Terminal, dsn: str) -> None:
    words = ("--stream", "shelf.1", "--stream", "orders", "--concurrency", "2", "--batch", "5")
    with terminal.worker(*words) as worker:
        assert worker.lines_about("worker started")[0]["streams"] == ["shelf.1", "orders"]
        line = terminal.run_json("bus", "publish", "--app", SHOP, "--type", "LineAdded")
        (order,) = orders(terminal, 1)
        worker.logs("placing")
        eventually(lambda: statuses(dsn)[order] == "DONE" and "done")
    assert statuses(dsn)[line["eventId"]] == "PENDING"


def test_publishing_and_working_go_through_pgbouncer_too(terminal: Terminal, dsn: str) -> None:
    with PrivateBouncer(dsn) as bouncer:
        through = {
            "KINGDOM_DATABASE_URL": bouncer.dsn(str(conninfo_to_dict(dsn)["dbname"])),
            "KINGDOM_THROUGH_PGBOUNCER": "1",
            "KINGDOM_LISTEN_URL": dsn,
        }
        with terminal.worker(environment=through) as worker:
            published = terminal.run(*PUBLISH, "--json", environment=through)
            assert published.code == 0
            eventually(lambda: statuses(dsn)[published.document["eventId"]] == "DONE" and "done")
            worker.process.send_signal(signal.SIGTERM)
            assert worker.ends() == 0
            assert not [line for line in worker.logged() if line["level"] == "error"]
