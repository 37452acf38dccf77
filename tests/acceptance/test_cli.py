import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from kingdom.verify.history import History
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.terminal import SHOP, Terminal

UNKNOWN = "01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dsn: str) -> InProcessCli:
    """Commands on a new database, in this process."""
    for name in ("KINGDOM_SCHEMA", "KINGDOM_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KINGDOM_DATABASE_URL", dsn)
    return InProcessCli(capsys, monkeypatch)


def test_help_and_version_need_no_database(terminal: Terminal) -> None:
    nowhere = {"KINGDOM_DATABASE_URL": ""}
    assert "bus" in terminal.run("--help", environment=nowhere).out
    assert "migrate" in terminal.run("bus", "--help", environment=nowhere).out
    assert terminal.run("--version", environment=nowhere).out.strip() == f"kingdom {version('kingdom')}"


def test_without_a_store_the_error_says_how_to_name_one(terminal: Terminal) -> None:
    done = terminal.run("bus", "stats", environment={"KINGDOM_DATABASE_URL": ""})
    assert done.code == 1
    assert "there is no store at" in done.err
    assert "--database-url" in done.err
    assert "KINGDOM_DATABASE_URL" in done.err


def test_the_url_of_the_store_is_also_read_from_database_url(terminal: Terminal, dsn: str) -> None:
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


def test_a_server_that_never_answers_causes_a_timeout(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?connect_timeout=1"
        done = terminal.run("bus", "stats", "--database-url", url)
    assert done.code == 3
    assert "timeout" in done.err


@pytest.mark.parametrize("url", ["mysql://root:secret@host/x", "postgresql://u:sec ret@host/x", "sec ret"])
def test_an_invalid_url_is_refused_without_printing_it(terminal: Terminal, url: str) -> None:
    done = terminal.run("bus", "stats", "--database-url", url)
    assert done.code == 2
    assert "postgresql://" in done.err
    assert "ret" not in done.err


def test_a_store_without_our_tables_says_what_to_run(terminal: Terminal) -> None:
    for words in (("stats",), ("work", SHOP), ("publish", "--stream", "s", "--type", "T")):
        done = terminal.run("bus", *words, "--schema", "elsewhere")
        assert done.code == 2
        assert "kingdom bus migrate" in done.err


def test_a_role_without_the_privilege_is_refused_with_the_reason(terminal: Terminal, dsn: str) -> None:
    url = make_conninfo(dsn, options="-c role=pg_monitor")
    done = terminal.run("bus", "migrate", "--schema", "elsewhere", "--database-url", url)
    assert done.code == 2
    assert "permission denied" in done.err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("why", UNKNOWN), 1, "there is no"),
        (("dead", "show", UNKNOWN), 1, "there is no"),
        (("redrive", UNKNOWN), 1, "there is no"),
        (("cancel", UNKNOWN, "--stream", "orders"), 1, "not open"),
        (("resume", "orders"), 1, "was not paused"),
        (("resume", "order", "--app", SHOP), 2, "'order' is not declared"),
        (("why", "1234"), 2, "UUID"),
        (("redrive",), 2, "--all"),
        (("tail", "--from", "yesterday"), 2, "cursor"),
        (("publish", "--type", "OrderPlaced"), 2, "--stream"),
        (("publish", "--stream", "orders"), 2, "--type"),
        (("publish", "--stream", "orders", "--type", "T", "--delay", "soon"), 2, "5m"),
        (("publish", "--stream", "orders", "--type", "T", "--delay", "99999999999d"), 2, "the maximum is 36500d"),
        (("publish", "--stream", "orders", "--file", "-", "--payload", "{}"), 2, "put them into its lines"),
        (("publish", "--stream", "orders", "--file", "-", "--id", UNKNOWN), 2, "put them into its lines"),
        (("retain", "--archive-days", "1e12"), 2, "36500"),
        (("verify", "--history", "/proc/nowhere"), 2, "/proc/nowhere cannot be created"),
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
def test_an_impossible_command_fails_with_a_message_and_an_exit_code(
    cli: InProcessCli, words: tuple[str, ...], code: int, sentence: str
) -> None:
    done = cli("bus", *words)
    assert done.code == code, done
    assert sentence in done.err
    assert done.out == ""


def test_a_directory_with_an_earlier_history_is_refused(cli: InProcessCli, tmp_path: Path) -> None:
    earlier = History(tmp_path, "publisher-1.3")
    earlier.write("ready")
    earlier.close()
    done = cli("bus", "verify", "--history", str(tmp_path))
    assert done.code == 2
    assert f"{tmp_path} has the history of an earlier trial: choose another directory" in done.err
