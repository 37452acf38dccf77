import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dead, Envelope
from kingdom.cli.bus import storage
from tests.acceptance import shop
from tests.acceptance.terminal import Terminal, eventually

COMMANDS = typer.main.get_command(storage.app).commands  # type: ignore[attr-defined]
ELSEWHERE = ("--schema", "elsewhere")
NOTHING = {
    "openEvents": 0,
    "deadEvents": 0,
    "endedEvents": 0,
    "blockedKeys": 0,
    "records": 0,
    "dedupKeys": 0,
    "pausedStreams": 0,
    "logEntries": 0,
    "transportPositions": 0,
}
HELD = {**NOTHING, "openEvents": 3, "deadEvents": 1, "blockedKeys": 1, "pausedStreams": 1, "logEntries": 1}


async def fill_every_state(terminal: Terminal, dsn: str) -> None:
    async with PostgresBus(dsn, shop.topology) as bus:
        await bus.publish(*(Envelope(type="LineAdded", partition_key="k") for _ in range(2)))
        (head,) = await bus.claim("lines", 1, "somebody")
        async with bus.transaction(hold=[head]) as transaction:
            await transaction.settle(head, Dead("gone"))
        await bus.publish(*(Envelope(type="OrderPlaced", payload={"order": number}) for number in range(2)))
    assert terminal.run("bus", "pause", "shelf.1", "--reason", "tidying").code == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "house.jsonl.gz"


@pytest.fixture
async def packed(terminal: Terminal, dsn: str, file: Path) -> Path:
    """Return an export of a store, and create an empty store in the schema `elsewhere`."""
    await fill_every_state(terminal, dsn)
    assert terminal.run_json("storage", "export", str(file))["exported"] == HELD
    assert terminal.run("bus", "migrate", *ELSEWHERE).code == 0
    return file


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_describes_its_json(name: str) -> None:
    command = COMMANDS[name]
    assert f"Example: kingdom storage {name}" in command.help
    assert "JSON: " in command.help
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--json", "--database-url", "--schema", "--app"} <= flags


def test_the_help_names_the_storage_and_its_commands(terminal: Terminal) -> None:
    assert "storage" in terminal.run("--help").out
    shown = terminal.run("storage", "--help").out
    assert all(name in shown for name in ("export", "import"))


async def test_open_events_are_handled_in_the_store_that_they_were_moved_to(terminal: Terminal, packed: Path) -> None:
    moved = terminal.run_json("storage", "import", str(packed), *ELSEWHERE)
    expected = {"file": str(packed), "from": "postgresql", "to": "postgresql", "exported": HELD, "imported": HELD}
    assert moved == expected
    assert terminal.run_json("bus", "dead", "list", *ELSEWHERE)[0]["errorMessage"] == "gone"
    with terminal.worker(*ELSEWHERE):
        entries = eventually(lambda: len(log := placed(terminal)) == 2 and log)
    assert entries == [{"order": 0}, {"order": 1}]


def placed(terminal: Terminal) -> list[dict[str, int]]:
    log = terminal.run("bus", "tail", *ELSEWHERE, "--json").documents
    return sorted((entry["data"] for entry in log if entry["type"] == "order.placed"), key=lambda data: data["order"])


def test_items_of_runs_move_from_files_to_files(terminal: Terminal, tmp_path: Path, file: Path) -> None:
    here, there = (("--database-url", f"file:{tmp_path / name}") for name in ("here", "there"))
    assert terminal.run("git", "create", "app", "/nowhere", "--no-check", *here).code == 0
    assert terminal.run_json("storage", "export", str(file), *here)["exported"]["records"] > 0
    assert terminal.run("storage", "import", str(file), *there).code == 0
    assert terminal.run_json("git", "show", "app", *there) == terminal.run_json("git", "show", "app", *here)


async def test_export_and_import_print_the_counts_of_both_stores(terminal: Terminal, dsn: str, file: Path) -> None:
    await fill_every_state(terminal, dsn)
    exported = terminal.run("storage", "export", str(file))
    assert exported.code == 0
    assert "open events" in exported.out
    assert f"kingdom storage import {file}" in exported.out
    assert exported.err == ""
    terminal.run("bus", "migrate", *ELSEWHERE)
    imported = terminal.run("storage", "import", str(file), *ELSEWHERE)
    assert imported.code == 0
    (line,) = (line for line in imported.out.splitlines() if "open events" in line)
    assert line.split() == ["open", "events", "3", "3"]


async def test_export_and_import_show_their_progress_on_a_terminal(
    terminal: Terminal, packed: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.jsonl"
    screen = terminal.converse("storage", "export", str(again), until="Exported everything", answer="").out
    assert "Exporting" in screen
    assert "7/7" in screen
    screen = terminal.converse(
        "storage", "import", str(packed), *ELSEWHERE, until="Imported and counted", answer=""
    ).out
    assert "Checking" in screen
    assert "Importing" in screen
    assert "7/7" in screen


def cut_off(whole: bytes) -> bytes:
    return whole[:-20]


def flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]


@pytest.mark.parametrize("damage", [cut_off, flipped])
def test_a_damaged_export_is_refused_and_nothing_is_written(
    terminal: Terminal, packed: Path, damage: Callable[[bytes], bytes]
) -> None:
    packed.write_bytes(damage(packed.read_bytes()))
    done = terminal.run("storage", "import", str(packed), *ELSEWHERE)
    assert done.code == 1
    assert "export it again" in done.err
    assert done.out == ""
    assert terminal.run_json("bus", "stats", *ELSEWHERE) == []


async def test_an_import_into_a_store_with_content_is_refused_and_changes_nothing(
    terminal: Terminal, packed: Path
) -> None:
    before = terminal.run_json("bus", "stats")
    done = terminal.run("storage", "import", str(packed))
    assert done.code == 1
    assert "not empty, it has 3 open events" in done.err
    assert [row | {"oldestPendingSeconds": 0} for row in terminal.run_json("bus", "stats")] == [
        row | {"oldestPendingSeconds": 0} for row in before
    ]


async def test_a_store_with_events_in_flight_is_not_exported(terminal: Terminal, dsn: str, file: Path) -> None:
    await fill_every_state(terminal, dsn)
    async with PostgresBus(dsn, shop.topology) as bus:
        assert await bus.claim("orders", 1, "somebody")
        done = terminal.run("storage", "export", str(file))
    assert done.code == 1
    assert "in flight under 1 lease(s): stop the workers" in done.err
    assert not await asyncio.to_thread(file.exists)


async def test_a_store_that_changed_during_the_export_is_reported(terminal: Terminal, dsn: str, file: Path) -> None:
    await fill_every_state(terminal, dsn)
    with psycopg.connect(dsn) as connection:
        # The export waits here, after it has taken its snapshot.
        connection.execute("LOCK TABLE kingdom.log IN ACCESS EXCLUSIVE MODE")
        exporting = asyncio.create_task(asyncio.to_thread(terminal.run, "storage", "export", str(file)))
        await asyncio.to_thread(eventually, lambda: waiting(connection))
        async with PostgresBus(dsn, shop.topology) as bus:
            await bus.publish(Envelope(type="OrderPlaced"))
        connection.rollback()
        done = await exporting
    assert (done.code, "Exported everything" in done.out) == (1, False)
    assert "changed during the export" in done.err


def waiting(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("SELECT pid FROM pg_locks WHERE NOT granted").fetchall()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("import", "nowhere.jsonl"), 2, "nowhere.jsonl"),
        (("export", "nowhere/house.jsonl"), 1, "No such file or directory; choose a file in an existing"),
        (("export", "README.md"), 1, "already exists"),
        (("import", "README.md"), 1, "was not written by"),
        (("export", "house.jsonl", *ELSEWHERE), 2, "kingdom bus migrate"),
    ],
)
def test_an_impossible_command_fails_with_a_message_and_an_exit_code(
    terminal: Terminal, words: tuple[str, ...], code: int, sentence: str
) -> None:
    done = terminal.run("storage", *words)
    assert done.code == code, done
    assert sentence in done.err
    assert done.out == ""
