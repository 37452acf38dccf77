import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dead, Envelope, LogEntry
from tests.acceptance import shop
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.terminal import CTRL_C, SHOP, Terminal, eventually

CLEANED = "recovery.files_cleaned"


async def publish(dsn: str, *envelopes: Envelope) -> list[UUID]:
    async with PostgresBus(dsn, shop.topology) as bus:
        await bus.publish(*envelopes)
    return [envelope.event_id for envelope in envelopes]


async def claim(dsn: str, stream: str) -> None:
    async with PostgresBus(dsn, shop.topology) as bus:
        assert await bus.claim(stream, 100, "somebody")


async def kill(dsn: str, stream: str, reason: Dead) -> None:
    async with PostgresBus(dsn, shop.topology) as bus:
        for delivery in await bus.claim(stream, 100, "somebody"):
            async with bus.transaction(hold=[delivery]) as transaction:
                await transaction.settle(delivery, reason)


async def test_migrating_shows_its_plan_and_applies_it_once(terminal: Terminal) -> None:
    elsewhere = ("--schema", "elsewhere")
    planned = terminal.run_json("bus", "migrate", "--dry-run", *elsewhere)
    assert planned["dryRun"] is True
    assert planned["migrations"]
    applied = terminal.run_json("bus", "migrate", *elsewhere)
    assert applied == {"schema": "elsewhere", "dryRun": False, "migrations": planned["migrations"]}
    assert terminal.run_json("bus", "migrate", *elsewhere)["migrations"] == []
    assert terminal.run_json("bus", "stats", *elsewhere) == []


async def test_migrations_behind_pgbouncer_need_a_direct_connection(terminal: Terminal, dsn: str) -> None:
    behind = {"KINGDOM_THROUGH_PGBOUNCER": "1"}
    done = terminal.run("bus", "migrate", environment=behind)
    assert done.code == 2
    assert "KINGDOM_LISTEN_URL" in done.err
    assert terminal.run("bus", "migrate", environment={**behind, "KINGDOM_LISTEN_URL": dsn}).code == 0


async def test_stats_show_each_stream_as_text_and_as_json(terminal: Terminal, dsn: str) -> None:
    await publish(dsn, *(Envelope(type="OrderPlaced") for _ in range(3)), Envelope(type="LineAdded"))
    await kill(dsn, "lines", Dead("gone"))
    assert terminal.run("bus", "pause", "shelf.1", "--reason", "tidying").code == 0
    lines, orders, shelf = terminal.run_json("bus", "stats")
    assert (lines["stream"], lines["pending"], lines["dead"]) == ("lines", 0, 1)
    assert (orders["stream"], orders["pending"], orders["processing"]) == ("orders", 3, 0)
    assert orders["oldestPendingSeconds"] > 0
    assert shelf == {
        "stream": "shelf.1",
        "pending": 0,
        "processing": 0,
        "dead": 0,
        "oldestPendingSeconds": 0.0,
        "paused": "tidying",
    }
    shown = terminal.run("bus", "stats").out
    assert all(word in shown for word in ("orders", "lines", "shelf.1", "tidying"))


async def test_watched_stats_continue_until_interrupted(terminal: Terminal, dsn: str) -> None:
    with terminal.start("bus", "stats", "--watch", "--interval", "100ms", "--json") as watching:
        assert watching.wait_for_lines(1) == ["[]"]
        await publish(dsn, Envelope(type="OrderPlaced"))
        assert '"pending":1' in watching.wait_for_lines(2)[1]
        watching.process.send_signal(signal.SIGINT)
        assert watching.ends() == 130


async def test_watched_stats_are_redrawn_for_a_person(terminal: Terminal, dsn: str) -> None:
    await publish(dsn, Envelope(type="OrderPlaced"))
    done = terminal.converse("bus", "stats", "--watch", until="oldest due", answer=CTRL_C)
    assert done.code == 130
    assert "orders" in done.out


async def test_a_paused_stream_says_why_and_continues_when_resumed(terminal: Terminal, dsn: str) -> None:
    (event,) = await publish(dsn, Envelope(type="OrderPlaced"))
    paused = terminal.run_json("bus", "pause", "orders", "--reason", "the bank is closed")
    assert paused == {"stream": "orders", "reason": "the bank is closed", "actor": "tester"}
    sentence = terminal.run("bus", "why", str(event)).out
    assert "OrderPlaced in orders" in sentence
    assert "paused by tester" in sentence
    assert "the bank is closed" in sentence
    assert terminal.run_json("bus", "resume", "orders") == {"stream": "orders", "wasPaused": True}
    assert "waits for a free worker" in terminal.run("bus", "why", str(event)).out


async def test_a_waiting_event_is_cancelled_at_once_and_a_running_one_by_request(terminal: Terminal, dsn: str) -> None:
    (waiting,) = await publish(dsn, Envelope(type="OrderPlaced"))
    cancelled = terminal.run_json("bus", "cancel", str(waiting), "--stream", "orders")
    assert cancelled == {"eventId": str(waiting), "stream": "orders", "result": "cancelled"}
    (running,) = await publish(dsn, Envelope(type="OrderPlaced"))
    await claim(dsn, "orders")
    assert terminal.run_json("bus", "cancel", str(running), "--stream", "orders")["result"] == "requested"
    assert "cancellation was requested" in terminal.run("bus", "why", str(running)).out


async def test_without_the_application_a_cancelled_first_event_still_blocks_its_key(
    terminal: Terminal, dsn: str
) -> None:
    line = [Envelope(type="LineAdded", partition_key="k") for _ in range(2)]
    head, follower = await publish(dsn, *line)
    terminal.run_json("bus", "cancel", str(head), "--stream", "lines")
    (situation,) = terminal.run_json("bus", "why", str(follower))
    assert situation["blockedByEventId"] == str(head)


def make_old_partition(dsn: str, days: int = 20) -> None:
    old = datetime.now(UTC).date() - timedelta(days=days)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE kingdom.outbox_archive_{old:%Y%m%d} PARTITION OF kingdom.outbox_archive"
            f" FOR VALUES FROM ('{old}') TO ('{old + timedelta(days=1)}')".encode()
        )


async def test_retention_makes_and_drops_partitions(terminal: Terminal, dsn: str) -> None:
    made = terminal.run_json("bus", "retain", "--ahead-days", "2")
    # Today and two more days of the archive, the log, the texts of runs and the events of the courier.
    assert made["partitionsMade"] == 4 * 3
    assert made["dedupKeysRemoved"] == made["recordsRemoved"] == 0
    make_old_partition(dsn)
    kept = terminal.run_json("bus", "retain", "--ahead-days", "2", "--archive-days", "30")
    assert (kept["partitionsMade"], kept["partitionsDropped"]) == (0, 0)
    assert terminal.run_json("bus", "retain", "--ahead-days", "2")["partitionsDropped"] == 1
    assert cleaned(terminal) == [("tester", {"deleted_count": 1})], "what was removed is counted once"


def test_retention_keeps_what_the_settings_file_or_the_application_keeps(
    cli_on_database: InProcessCli, dsn: str, tmp_path: Path
) -> None:
    cli_on_database("bus", "migrate")
    make_old_partition(dsn)
    (tmp_path / "kingdom.yaml").write_text("chamberlain: {retention: {queue_days: 30}}\n")
    assert cli_on_database.run_json("bus", "retain")["partitionsDropped"] == 0
    (tmp_path / "kingdom.yaml").unlink()
    patient = ("--app", f"{shop.__name__}:patient_app")
    assert cli_on_database.run_json("bus", "retain", *patient)["partitionsDropped"] == 0
    assert cli_on_database.run_json("bus", "retain", *patient, "--archive-days", "14")["partitionsDropped"] == 1


def test_an_engine_keeps_what_the_settings_file_keeps(terminal: Terminal, dsn: str, tmp_path: Path) -> None:
    terminal.run("bus", "migrate")
    make_old_partition(dsn, days=20)
    make_old_partition(dsn, days=60)
    file = tmp_path / "kingdom.yaml"
    file.write_text("chamberlain: {retention: {queue_days: 30}}\n")
    with terminal.start("role", "engine", "--config", str(file), "--json-logs"):
        assert eventually(lambda: cleaned(terminal)) == [("engine", {"deleted_count": 1})]


def cleaned(terminal: Terminal) -> list[tuple[str, object]]:
    """Return the actor and the data of each logged removal."""
    entries = terminal.run("bus", "tail", "--json").documents
    return [(entry["actor"], entry["data"]) for entry in entries if entry["type"] == CLEANED]


@pytest.mark.parametrize(("words", "actor"), [(("bus", "work", SHOP), "bus"), (("role", "engine"), "engine")])
def test_removals_by_workers_and_engines_are_counted(
    terminal: Terminal, dsn: str, words: tuple[str, ...], actor: str
) -> None:
    make_old_partition(dsn)
    with terminal.start(*words, "--json-logs"):
        assert eventually(lambda: cleaned(terminal)) == [(actor, {"deleted_count": 1})]


@pytest.mark.parametrize(
    ("level", "statement"), [("REPEATABLE READ", "SELECT 1"), ("READ COMMITTED", "CREATE TABLE written ()")]
)
def test_pins_name_the_session_that_keeps_old_rows(
    cli_on_database: InProcessCli,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    level: LiteralString,
    statement: LiteralString,
) -> None:
    assert cli_on_database("bus", "pins").code == 0
    # A transaction counts as a pin only after a while.
    monkeypatch.setattr("kingdom.backends.postgres.operations._PIN_SECONDS", 0.0)
    with psycopg.connect(dsn, application_name="forgotten") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL " + level)
        connection.execute(statement)
        session = f"session {connection.info.backend_pid} of "
        (pin,) = [pin for pin in cli_on_database.run_json("bus", "pins") if pin["what"].startswith(session)]
    assert set(pin) == {"what", "ageSeconds", "detail"}
    assert "forgotten" in pin["detail"]


async def test_the_log_is_read_from_a_cursor_and_followed(terminal: Terminal, dsn: str) -> None:
    async with PostgresBus(dsn, shop.topology) as bus:
        operations = PostgresOperations(bus)
        for number in range(3):
            async with bus.transaction() as transaction:
                await transaction.append(LogEntry(type="counted", actor="me", data={"number": number}))
        first, second, third = terminal.run("bus", "tail", "--json").documents
        assert [entry["data"]["number"] for entry in (first, second, third)] == [0, 1, 2]
        assert set(first) == {
            *("cursor", "at", "type", "actor", "traceId", "aggregateType", "aggregateId", "data"),
        }
        behind = terminal.run("bus", "tail", "--from", first["cursor"], "--limit", "1", "--json").documents
        assert behind == [second]
        assert terminal.run("bus", "tail", "--from", "now").out == ""
        assert "counted by me: number=2" in terminal.run("bus", "tail").out.splitlines()[-1]
        with terminal.start("bus", "tail", "-f", "--from", second["cursor"], "--json") as tail:
            tail.wait_for_lines(1)
            await operations.pause("orders", reason="watching", actor="me")
            assert '"type":"stream.paused"' in tail.wait_for_lines(2)[1]


async def test_the_application_can_be_named_in_the_environment(terminal: Terminal) -> None:
    done = terminal.run("bus", "pause", "undeclared", "--reason", "x", environment={"KINGDOM_APP": SHOP})
    assert done.code == 2
    assert "'undeclared' is not declared" in done.err
