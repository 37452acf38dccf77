import socket
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer
from psycopg.conninfo import make_conninfo

from kingdom.cli import bus
from tests.acceptance.terminal import SHOP, Terminal

UNKNOWN = "01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01"


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(bus.app)))


def test_help_and_version_need_no_database(terminal: Terminal) -> None:
    nowhere = {"KINGDOM_DATABASE_URL": ""}
    assert "bus" in terminal.run("--help", environment=nowhere).out
    assert "migrate" in terminal.run("bus", "--help", environment=nowhere).out
    assert terminal.run("--version", environment=nowhere).out.strip() == f"kingdom {version('kingdom')}"


def test_the_help_does_not_load_the_bus(terminal: Terminal) -> None:
    done = terminal.run("--help", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "kingdom.cli.main" in done.err
    assert "kingdom.bus" not in done.err
    assert "psycopg" not in done.err


def test_all_commands_are_there() -> None:
    assert set(COMMANDS) == {
        *("migrate", "publish", "work", "stats", "tail", "why", "pause", "resume", "cancel", "retain", "pins"),
        *("dead list", "dead show", "dead patch", "dead discard", "redrive", "verify"),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_by_example_and_documents_its_json(name: str) -> None:
    command = COMMANDS[name]
    assert f"Example: kingdom bus {name}" in command.help
    assert "JSON: " in command.help
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--json", "--database-url", "--schema", "--app"} <= flags
    assert all(parameter.help for parameter in command.params if parameter.param_type_name == "option")


def test_without_a_store_the_way_to_name_one_is_told(terminal: Terminal) -> None:
    done = terminal.run("bus", "stats", environment={"KINGDOM_DATABASE_URL": ""})
    assert done.code == 1
    assert "there is no store at" in done.err
    assert "--database-url" in done.err
    assert "KINGDOM_DATABASE_URL" in done.err


def test_database_url_is_read_from_the_common_variable_too(terminal: Terminal, dsn: str) -> None:
    done = terminal.run("bus", "stats", "--json", environment={"KINGDOM_DATABASE_URL": "", "DATABASE_URL": dsn})
    assert (done.code, done.document) == (0, [])


@pytest.mark.parametrize("command", ["stats", "migrate"])
def test_a_refused_connection_is_reported_as_unreachable(terminal: Terminal, command: str) -> None:
    done = terminal.run("bus", command, "--database-url", "postgresql://postgres:secret@127.0.0.1:1/postgres")
    assert done.code == 3
    assert "refused" in done.err
    assert "secret" not in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_a_server_that_never_answers_is_given_up(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = terminal.run("bus", "stats", "--database-url", f"postgresql://postgres@127.0.0.1:{port}/postgres")
    assert done.code == 3
    assert "timeout" in done.err


@pytest.mark.parametrize("url", ["mysql://root:secret@host/x", "postgresql://u:sec ret@host/x", "sec ret"])
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(terminal: Terminal, url: str) -> None:
    done = terminal.run("bus", "stats", "--database-url", url)
    assert done.code == 2
    assert "postgresql://" in done.err
    assert "ret" not in done.err


def test_a_store_without_our_tables_says_what_to_run(terminal: Terminal) -> None:
    for words in (("stats",), ("work", SHOP), ("publish", "--stream", "s", "--type", "T")):
        done = terminal.run("bus", *words, "--schema", "elsewhere")
        assert done.code == 2
        assert "kingdom bus migrate" in done.err


def test_a_role_without_the_right_is_told_so(terminal: Terminal, dsn: str) -> None:
    url = make_conninfo(dsn, options="-c role=pg_monitor")
    done = terminal.run("bus", "migrate", "--schema", "elsewhere", "--database-url", url)
    assert done.code == 2
    assert "permission denied" in done.err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("why", UNKNOWN), 1, "not known here"),
        (("dead", "show", UNKNOWN), 1, "not known here"),
        (("redrive", UNKNOWN), 1, "not known here"),
        (("cancel", UNKNOWN, "--stream", "orders"), 1, "not open"),
        (("resume", "orders"), 1, "was not paused"),
        (("resume", "order", "--app", SHOP), 2, "'order' is not declared"),
        (("why", "1234"), 2, "UUID"),
        (("redrive",), 2, "--all"),
        (("tail", "--from", "yesterday"), 2, "cursor"),
        (("publish", "--type", "OrderPlaced"), 2, "--stream"),
        (("publish", "--stream", "orders"), 2, "--type"),
        (("publish", "--stream", "orders", "--type", "T", "--delay", "soon"), 2, "5m"),
        (("publish", "--stream", "orders", "--type", "T", "--payload", "[1]"), 2, "JSON object"),
        (("publish", "--stream", "orders", "--type", "T", "--payload", "@nowhere.json"), 2, "nowhere.json"),
        (("publish", "--stream", "lines", "--type", "T", "--key", "k"), 2, "--ordered"),
        (("work",), 2, "MODULE:OBJECT"),
        (("work", "tests.acceptance.shop"), 2, "MODULE:OBJECT"),
        (("work", "tests.acceptance.nothing:app"), 2, "tests.acceptance.nothing"),
        (("work", "tests.acceptance.shop:nothing"), 2, "'nothing'"),
        (("work", "tests.acceptance.shop:topology"), 2, "Topology"),
        (("work", SHOP, "--stream", "shelf.{number}"), 2, "family"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence_with_an_honest_code(
    terminal: Terminal, words: tuple[str, ...], code: int, sentence: str
) -> None:
    done = terminal.run("bus", *words)
    assert done.code == code, done
    assert sentence in done.err
    assert done.out == ""
