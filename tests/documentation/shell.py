"""A bash session that runs one command after the other, as on a terminal."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_ENDING_SECONDS = 20


class ShellEnded(Exception):
    """Raised when the session itself has ended, for example after `exit`."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command; no status means that it did not end in time."""

    status: int | None
    printed: str
    seconds: float


class Shell:
    """One session, which keeps its directory, variables and jobs between commands. It has no standard input."""

    def __init__(self, notes: Path, directory: Path, environment: Mapping[str, str]) -> None:
        notes.mkdir()
        self._notes = notes
        self._commands = 0
        self._started_at = 0.0
        self._reading, writing = os.pipe()
        self._statuses = writing
        with (notes / "session").open("wb") as session:
            self._process = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=session,
                stderr=session,
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def directory(self) -> Path:
        """Return the current directory of the session."""
        return Path(f"/proc/{self._process.pid}/cwd").readlink()

    @property
    def printed(self) -> str:
        """Return the output of the last command so far."""
        return (self._notes / f"{self._commands}.out").read_text(errors="replace")

    def begin(self, command: str) -> None:
        """Start a command; its output can be read while it runs."""
        self._commands += 1
        step = self._notes / f"{self._commands}"
        step.write_text(f"{command}\n")
        output = step.with_suffix(".out")
        output.touch()
        self._started_at = time.monotonic()
        # Read from a file, so that an unclosed quote fails at once.
        line = f'. "{step}" </dev/null >"{output}" 2>&1 {self._statuses}>&-; echo "$?" >&{self._statuses}\n'
        stdin = self._process.stdin
        assert stdin
        stdin.write(line.encode())
        stdin.flush()

    def status(self, seconds: float) -> int | None:
        """Wait for the exit status of the command; return None after the timeout."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return None
        status = os.read(self._reading, 16)
        if not status:
            raise ShellEnded
        return int(status)

    def run(self, command: str, seconds: float) -> Done:
        """Run a command to its end."""
        self.begin(command)
        status = self.status(seconds)
        return Done(status, self.printed, time.monotonic() - self._started_at)

    def end(self) -> None:
        """End the session and its whole process group, by force if it takes too long."""
        if self._process.stdin:
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            self._wait_for_group()
        self._process.wait()
        os.close(self._reading)

    def _wait_for_group(self) -> None:
        deadline = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < deadline:
            self._process.poll()
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)
