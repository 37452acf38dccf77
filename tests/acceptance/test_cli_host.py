import signal
from pathlib import Path

import pytest

from bench.postgres import PrivateCluster
from tests.acceptance.runs import Runs, script, write
from tests.acceptance.terminal import Running, Terminal, eventually

RUN_HOST = ("role", "host", "--json-logs", "--name")


@pytest.fixture
def files(tmp_path: Path, realm: Path) -> Terminal:
    return Terminal(tmp_path, f"file:{realm}")


def ended(process: Running) -> int:
    process.process.terminate()
    return process.ends()


def test_engine_and_hosts_share_a_run_through_the_database(terminal: Terminal, tmp_path: Path) -> None:
    runs = Runs(terminal, tmp_path)
    runs.template("Write", {"name": "write", "tasks": [script(write("a.txt", "hello"))]})
    lonely = runs.run("create", "write", "--start")
    assert lonely.code == 1
    assert "was created but not started" in lonely.err
    assert "no soldier host is up" in lonely.err
    with (
        terminal.start("role", "engine", "--json-logs") as engine,
        terminal.start(*RUN_HOST, "box", "--directory", str(tmp_path / "box")) as host,
    ):
        host.logs("host registered")
        done = runs.run("start", "last", "--wait", "--json")
        assert (done.code, done.document["status"]) == (0, "COMPLETED"), done.err
        assert "+hello" in runs.run("diff", "last").out
        assert "QueryResponded by box" in runs.run("logs", "last").out
        (listed,) = terminal.run_json("host", "list")
        assert (listed["id"], listed["status"], listed["slots"]) == ("box", "UP", 3)
        assert listed["directory"] == str(tmp_path / "box")
        assert listed["leaseSeconds"] == 30
        assert (ended(host), ended(engine)) == (0, 0)
        assert engine.lines_about("ended")[0]["cut_off"] is False


def test_a_lost_host_can_be_retired_before_its_lease_expires(files: Terminal, realm: Path) -> None:
    with files.start(*RUN_HOST, "box", "--slots", "2") as host:
        host.logs("host registered")
        assert (realm / "soldiers" / "box").is_dir()
        second = files.run(*RUN_HOST, "crate", "--directory", str(realm / "soldiers" / "box"))
        assert (second.code, "another host uses" in second.err) == (2, True)
        host.process.send_signal(signal.SIGKILL)
        host.ends()
    assert "takes no new runs" in files.run("host", "drain", "box").out
    assert "UP, drained" in files.run("host", "list").out
    assert files.run("host", "undrain", "box").out == "Host box takes new runs.\n"
    assert [host["drained"] for host in files.run_json("host", "list")] == [False]
    careful = files.run("host", "retire", "box")
    assert (careful.code, "add --yes" in careful.err) == (2, True)
    assert files.run("host", "retire", "box", "--yes").out == "Host box is LOST.\n"
    assert [host["status"] for host in files.run_json("host", "list")] == ["LOST"]
    unknown = files.run("host", "retire", "nobody", "--yes")
    assert (unknown.code, "`kingdom host list`" in unknown.err) == (1, True)


@pytest.mark.parametrize(
    "words", [("host", "run"), ("engine", "--host"), ("role", "host"), ("role", "engine", "--host")]
)
def test_a_custom_agent_program_is_named_in_kingdom_yaml(files: Terminal, words: tuple[str, ...]) -> None:
    done = files.run(*words, "--agent", "command")
    assert (done.code, "soldiers.command in kingdom.yaml" in " ".join(done.err.split())) == (2, True)


def test_the_password_of_the_store_is_redacted_in_stored_output(dsn: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, f"{dsn} password=swordfish-of-the-store")
    runs = Runs(terminal, tmp_path)
    # The shell assembles the password: the template must not contain it, because only output is redacted.
    tell: dict[str, object] = {
        "name": "tell",
        "tasks": [script()],
        "verify": ["echo it is swordfish-of''-the-store; exit 1"],
    }
    runs.template("Tell", tell)
    with terminal.start("role", "engine", "--host", "--json-logs", "--directory", str(tmp_path / "box")) as engine:
        engine.logs("host registered")
        assert runs.run("create", "tell", "--start", "--wait").code == 1
    shown = runs.run("show", "last", "--json").out
    assert "it is [redacted]" in shown
    assert "swordfish-of-the-store" not in shown


def test_a_name_that_cannot_be_part_of_a_stream_is_refused(files: Terminal) -> None:
    done = files.run(*RUN_HOST, "box.example.org")
    assert (done.code, "at most 60 letters, digits" in done.err) == (2, True)


def test_an_engine_ends_if_its_host_cannot_run(files: Terminal, realm: Path) -> None:
    with files.start("role", "engine", "--host", "--name", "box", "--json-logs") as engine:
        engine.logs("host registered")
        again = files.run("role", "engine", "--host", "--name", "crate", "--directory", str(realm / "soldiers" / "box"))
        assert (again.code, "another host uses" in again.err) == (2, True)
        assert ended(engine) == 0


def test_engine_and_host_refuse_a_store_without_its_migrations(cluster: PrivateCluster, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, cluster.create_database("nothing_in_it"))
    for words in (("role", "engine", "--json-logs"), (*RUN_HOST, "box")):
        done = terminal.run(*words)
        assert (done.code, "run `kingdom bus migrate` first" in done.err) == (2, True)


def test_waiting_for_a_run_reports_that_no_engine_runs(files: Terminal, tmp_path: Path) -> None:
    runs = Runs(files, tmp_path)
    runs.template("Alone", {"name": "alone", "tasks": ["Nothing."]})
    settings = tmp_path / "kingdom.yaml"
    settings.write_text("{}\n")
    waits = ("workflow", "create", "alone", "--start", "--wait", "--json")
    with files.start(*RUN_HOST, "box") as host:
        host.logs("host registered")
        with files.start(*waits, unhandled=0.0) as waiting:
            eventually(lambda: "is `kingdom role engine` running?" in waiting._err.read_text() and "said")
        with files.start(*waits, "--config", str(settings), unhandled=0.0) as waiting:
            court = "is `kingdom up` or `kingdom role general` running?"
            eventually(lambda: court in waiting._err.read_text() and "said")
