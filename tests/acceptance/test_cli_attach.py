import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.runs import Runs, script, write
from tests.acceptance.terminal import Terminal, eventually

LEAVE = "\x02d"
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    directory = tmp_path_factory.mktemp("runs")
    runs = Runs(Terminal(directory, f"file:{directory / 'realm'}"), directory)
    with runs.engine():
        yield runs


@pytest.fixture(scope="module")
def at_work(runs: Runs) -> Iterator[str]:
    """A run whose agent has written a file and waits."""
    waits = script({"say": "I wait for you"}, write("seen.txt", "x"), {"wait_for": "app/go"}, {"answer": "I went"})
    runs.template("Wait", {"name": "wait", "tasks": [waits]})
    workflow_id: str = runs.run_json("create", "wait", "--start")["id"]
    runs.reaches(workflow_id, "RUNNING")
    yield workflow_id
    (runs.tree(workflow_id) / "go").touch()
    runs.reaches(workflow_id, "COMPLETED")


@needs_tmux
@pytest.mark.parametrize("until", ["I wait for you", "trees/tree1/seen.txt"])
def test_a_run_is_watched_in_tmux_and_keeps_running(runs: Runs, at_work: str, until: str) -> None:
    seen = runs.terminal.converse("attach", at_work, until=until, answer=LEAVE)
    assert seen.code == 0
    assert "read-only" in seen.out
    assert until in seen.out
    assert list((runs.host_directory / "attached").iterdir()) == []
    assert runs.run_json("show", at_work)["workflow"]["status"] == "RUNNING"


@needs_tmux
def test_a_person_can_open_a_shell_in_the_checkout(runs: Runs, at_work: str) -> None:
    command = "pwd > made-by-hand; tmux detach\r"
    seen = runs.terminal.converse("attach", at_work, "--shell", until="a shell in the checkout", answer=command)
    assert seen.code == 0
    made = runs.tree(at_work) / "made-by-hand"
    assert made.read_text().strip() == str(made.parent)


@needs_tmux
@pytest.mark.parametrize(("words", "readonly"), [((), 1), (("--shell",), 0)])
def test_a_viewer_cannot_type_and_a_killed_terminal_leaves_nothing(
    runs: Runs, at_work: str, words: tuple[str, ...], readonly: int
) -> None:
    ours, theirs = pty.openpty()
    store = f"file:{runs.directory / 'realm'}"
    watcher = subprocess.Popen(
        [sys.executable, "-m", "kingdom", "attach", at_work, *words, "--database-url", store],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        server, client, told_readonly = eventually(lambda: client_of(runs.host_directory / "attached"))
    finally:
        watcher.kill()
        watcher.wait()
    assert told_readonly == readonly
    os.kill(client, signal.SIGKILL)
    eventually(lambda: not is_running(server) and "gone")
    os.close(theirs)
    os.close(ours)


def client_of(attached: Path) -> tuple[int, ...] | bool:
    """Return the pid of a tmux server, the pid of its attached client, and whether that client is read-only."""
    for socket in attached.glob("*.sock"):
        words = ["tmux", "-S", str(socket), "list-clients", "-F", "#{pid} #{client_pid} #{client_readonly}"]
        if result := subprocess.run(words, capture_output=True, text=True, check=False).stdout.split():
            return tuple(map(int, result))
    return False


def is_running(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_without_a_terminal_the_transcript_is_followed(runs: Runs) -> None:
    runs.template("Short", {"name": "short", "tasks": [script({"say": "hello"})]})
    workflow_id = runs.run_json("create", "short", "--start", "--wait")["id"]
    shown = runs.terminal.run("attach", workflow_id)
    assert "showing `kingdom logs -f` instead" in shown.err
    assert "said      hello" in shown.out


def test_without_tmux_the_transcript_is_followed(runs: Runs, tmp_path: Path) -> None:
    runs.template("Brief", {"name": "brief", "tasks": [script({"say": "hello"})]})
    workflow_id = runs.run_json("create", "brief", "--start", "--wait")["id"]
    (tmp_path / "env").symlink_to(str(shutil.which("env")))
    shown = runs.terminal.run("attach", workflow_id, environment={"PATH": str(tmp_path)})
    assert "tmux is not installed: showing `kingdom logs -f` instead" in shown.err
    assert "said      hello" in shown.out


def test_the_files_of_an_ended_run_are_shown_once(runs: Runs) -> None:
    runs.template("Files", {"name": "files", "tasks": [script(write("made.txt", "12345"))]})
    workflow_id = runs.run_json("create", "files", "--start", "--wait")["id"]
    shown = runs.terminal.run("attach", workflow_id, "--files").out
    assert f"{workflow_id} is COMPLETED" in shown
    assert "6 B" in next(line for line in shown.splitlines() if "trees/tree1/made.txt" in line)
    assert "spaces/w1-space1/.kingdom-task.json" in shown
