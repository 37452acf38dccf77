"""A terminal for the real command line: every command is its own process."""

import contextlib
import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests import warm
from tests.acceptance import limits, shop
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SHOP = f"{shop.__name__}:app"
CTRL_C = "\x03"
T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Running:
    """A running command, with its output in two files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out = out
        self._err = err

    def printed_lines(self) -> list[str]:
        # The last line may be incomplete.
        return self._out.read_text().split("\n")[:-1]

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._err.read_text().split("\n")[:-1]]

    def lines_about(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.logged() if line["event"] == event]

    def wait_for_lines(self, lines: int) -> list[str]:
        return self._eventually(lambda: len(self.printed_lines()) >= lines and self.printed_lines())

    def logs(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        return self._eventually(lambda: len(self.lines_about(event)) >= times and self.lines_about(event))

    def ends(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def _eventually(self, look: Callable[[], T | bool]) -> T:
        def look_alive() -> T | bool:
            ended = self.process.poll()
            found = look()
            assert found or ended is None, f"it ended with {ended}: {self._err.read_text()}"
            return found

        return eventually(look_alive)


class Terminal:
    """Runs commands against one database, from the root of the repository."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self._directory = directory
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KINGDOM_", "PG")) and name != "DATABASE_URL"
        }
        self._environment |= {"KINGDOM_DATABASE_URL": dsn, "KINGDOM_ACTOR": "tester"}

    def run(self, *words: str, text: str = "", environment: Mapping[str, str] | None = None) -> Done:
        done = Done(*warm.run(words, ROOT, {**self._environment, **(environment or {})}, text))
        assert "Traceback" not in done.err
        return done

    def run_json(self, *words: str, text: str = "") -> Any:
        done = self.run(*words, "--json", text=text)
        assert done.code == 0, done.err
        return done.document

    def converse(self, *words: str, until: str, answer: str | signal.Signals | Callable[[], None]) -> Done:
        """Run a command on a terminal. When it shows this text and waits, type an answer or call a function."""

        def waits() -> bool:
            # Python misses a Ctrl-C that arrives between the printed question and the read of its answer.
            return answer != CTRL_C or psutil.Process(os.tcgetpgrp(ours)).status() == psutil.STATUS_SLEEPING

        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            # Only the terminal that controls a process turns Ctrl-C into a signal.
            ["setsid", "--ctty", "--wait", *self._command(words)],
            cwd=ROOT,
            env={**self._environment, "TERM": "xterm", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        screen = b""
        answered = False
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            # Reading fails when the last process has closed the terminal.
            with contextlib.suppress(OSError):
                while time.monotonic() < deadline:
                    if select.select([ours], [], [], 0.05)[0]:
                        screen += os.read(ours, 4096)
                        deadline = time.monotonic() + PATIENCE_SECONDS
                    if not answered and until.encode() in screen and waits():
                        answered = True
                        if callable(answer):
                            answer()
                        elif isinstance(answer, str):
                            os.write(ours, answer.encode())
                        else:
                            os.killpg(os.tcgetpgrp(ours), answer)
            return Done(process.wait(PATIENCE_SECONDS), screen.decode(), "")
        finally:
            os.close(ours)
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def start(self, *words: str, environment: Mapping[str, str] | None = None, **limit: float) -> Iterator[Running]:
        """Start a command that keeps running, optionally with another time limit."""
        name = f"{words[1]}-{time.monotonic_ns()}"
        out, err = self._directory / f"{name}.out", self._directory / f"{name}.err"
        with out.open("wb") as output, err.open("wb") as logged:
            process = subprocess.Popen(
                self._command(words, **limit),
                cwd=ROOT,
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=logged,
            )
        try:
            yield Running(process, out, err)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    @contextlib.contextmanager
    def worker(
        self, *words: str, app: str = SHOP, environment: Mapping[str, str] | None = None, **limit: float
    ) -> Iterator[Running]:
        with self.start("bus", "work", app, "--json-logs", *words, environment=environment, **limit) as worker:
            worker.logs("worker started")
            yield worker

    def _command(self, words: tuple[str, ...], **limit: float) -> list[str]:
        kingdom = limits.command(**limit) if limit else [sys.executable, "-m", "kingdom"]
        # Tests in the background of a shell, or under nohup, ignore these signals; a command in a terminal does not.
        return ["env", "--default-signal=INT,HUP", *kingdom, *words]


def eventually(look: Callable[[], T | bool]) -> T:
    """Call a function until it returns a value that is neither false nor True, and return that value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = look()
        if found and not isinstance(found, bool):
            return found
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def open_to_others(*places: Path) -> list[str]:
    """Return the paths and modes of the files and folders here that another account could read, change or enter."""
    modes: dict[Path, int] = {}
    for path in (path for place in places for path in (place, *place.rglob("*"))):
        # A process that uses the store may remove a file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            modes[path] = path.lstat().st_mode
    return [f"{path} {mode:o}" for path, mode in modes.items() if mode & 0o077 and not stat.S_ISLNK(mode)]
