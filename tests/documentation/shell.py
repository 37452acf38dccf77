"""A bash session that is told one command after the other, as a person at a terminal would."""

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
    """Raised when the session itself is gone, as after `exit`."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a command; without a status it has not ended in time."""

    status: int | None
    printed: str
    seconds: float


class Shell:
    """One session: directory, variables and jobs last from command to command. Nothing can be read from a keyboard."""

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
        """Return where the session stands now."""
        return Path(f"/proc/{self._process.pid}/cwd").readlink()

    @property
    def printed(self) -> str:
        """Return what the last command has printed so far."""
        return (self._notes / f"{self._commands}.out").read_text(errors="replace")

    def begin(self, command: str) -> None:
        """Let a command run; what it prints can be read meanwhile."""
        self._commands += 1
        step = self._notes / f"{self._commands}"
        step.write_text(f"{command}\n")
        output = step.with_suffix(".out")
        output.touch()
        self._started_at = time.monotonic()
        # Read from a file, so that a quote without its end fails instead of taking in what follows.
        line = f'. "{step}" </dev/null >"{output}" 2>&1 {self._statuses}>&-; echo "$?" >&{self._statuses}\n'
        stdin = self._process.stdin
        assert stdin
        stdin.write(line.encode())
        stdin.flush()

    def status(self, seconds: float) -> int | None:
        """Return the exit status of the command as soon as it has ended; None if it does not within the time."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return None
        said = os.read(self._reading, 16)
        if not said:
            raise ShellEnded
        return int(said)

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
