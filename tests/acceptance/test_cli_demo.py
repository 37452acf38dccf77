import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kingdom.supervisor.processes import ORDER
from tests.acceptance.terminal import Terminal

# On a quiet machine it takes half a minute; six others may share this one.
PATIENCE_SECONDS = 240
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Corner:
    """A corner of the machine in which everything that a demo leaves can be seen."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary, self.home, self.here = (directory / name for name in ("temporary", "home", "here"))
        for each in (self.temporary, self.home, self.here):
            each.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        # A store of the user's own is none of its business.
        url = "postgresql://nobody@localhost:1/nowhere"
        return {**os.environ, "TMPDIR": str(self.temporary), "HOME": str(self.home), "KINGDOM_DATABASE_URL": url}

    def files(self) -> list[Path]:
        return [path for each in (self.temporary, self.home, self.here) for path in each.iterdir()]

    def processes(self) -> list[int]:
        return [process.pid for process in psutil.process_iter() if self._is_ours(process)]

    @contextmanager
    def demo(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        # A shell that runs tests in the background lets them ignore SIGINT; a person's terminal does not.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "kingdom", "demo", "--fast", "--json", *words]
        with (self.directory / "story").open("w") as story:
            process = subprocess.Popen(
                command, cwd=self.here, env=self.environment, stdout=subprocess.PIPE, stderr=story, text=True
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def story(self) -> str:
        return (self.directory / "story").read_text()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            values = [*process.environ().values(), *process.cmdline(), process.cwd()]
        except psutil.Error:
            return False
        return any(str(self.directory) in value for value in values)


@pytest.fixture
def corner(tmp_path: Path) -> Corner:
    directory = tmp_path / "corner"
    directory.mkdir()
    return Corner(directory)


def test_the_demo_loses_nothing_does_nothing_twice_and_leaves_nothing(corner: Corner) -> None:
    with corner.demo() as demo:
        out, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        assert demo.returncode == 0, corner.story()[-3000:]
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert (report["ok"], report["findings"], report["directory"]) == (True, [], None)
    assert {each["general"]: each["status"] for each in report["assignments"]} == dict.fromkeys(
        ("gen-review", "gen-ticket", "gen-greeter"), "completed"
    )
    assert [kill["what"] for kill in report["kills"]] == ["agent", "king", "agent"]
    assert report["resumed_from"] in report["checkpoints"]
    assert (report["question"]["answer"], report["question"]["answered_by"]) == ("no", "demo")
    once = ("reviews", "comments", "pull_requests", "ticket_comments")
    assert {what: report["outside"][what] for what in once} == dict.fromkeys(once, 1)
    assert report["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in report["assignments"]))
    assert report["seconds"] < PATIENCE_SECONDS
    assert "goes on in the same session" in corner.story()
    assert (corner.files(), corner.processes()) == ([], [])


@pytest.mark.parametrize(
    ("words", "number"),
    [("", signal.SIGINT), ("1/6 ", signal.SIGINT), ("asks a person", signal.SIGTERM), ("kill -9", signal.SIGINT)],
)
def test_a_demo_that_is_stopped_leaves_no_process_and_no_file(
    corner: Corner, words: str, number: signal.Signals
) -> None:
    with corner.demo() as demo:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (corner.files() and words in corner.story()):
            assert time.monotonic() < deadline, corner.story()[-3000:]
            time.sleep(0.05)
        # The demo itself and six roles, unless they are still to come.
        assert len(corner.processes()) > (len(ORDER) if words else 0)
        demo.send_signal(number)
        # Somebody who cannot wait must not keep it from clearing away.
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        assert (demo.returncode, out) == (128 + number, ""), corner.story()[-3000:]
    assert "Stopped. Nothing is left behind." in corner.story()
    assert (corner.files(), corner.processes()) == ([], [])


@pytest.fixture
def terminal(corner: Corner, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in corner.environment.items():
        monkeypatch.setenv(name, value)
    return Terminal(corner.directory, "file:nowhere")


def test_ctrl_c_in_place_of_an_answer_leaves_nothing(corner: Corner, terminal: Terminal) -> None:
    done = terminal.converse("demo", until="Your answer: ", answer="\x03")
    assert (done.code, "Nothing is left behind." in done.out) == (128 + signal.SIGINT, True), done.out[-3000:]
    assert (corner.files(), corner.processes()) == ([], [])


def test_a_person_answers_and_finds_everything_where_the_screen_says(corner: Corner, terminal: Terminal) -> None:
    answer = "No, keep the cents."
    done = terminal.converse("demo", "--keep", until="Your answer: ", answer=f"{answer}\n")
    assert (done.code, "Nothing was lost, nothing was done twice." in done.out) == (0, True), done.out[-3000:]
    (directory,) = corner.files()
    assert f"cd {directory}" in done.out
    assert "kingdom explain task-" in done.out
    shown = [line.split("cat ")[1].split()[0] for line in done.out.splitlines() if "cat " in line]
    assert len(shown) > 5
    assert [path for path in shown if not (directory / path).is_file()] == []
    assert f"The team says: {answer}" in (directory / "outside" / "github.json").read_text()
    (ask,) = (directory / "realm" / "state" / "asks" / "answered").glob("*.json")
    assert json.loads(ask.read_text())["answered_by"] == "tester"
    assert corner.processes() == []
