"""The script of a job: a process stops, dies or waits at a named point, so that a trial need not wait for luck."""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

_LOOK_EVERY_SECONDS = 0.02


class ScriptRunner:
    """Carries out scripts in one process; what was done is remembered in a directory all processes see."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def act(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Do what a script says about a point; stopping and dying happen once, waiting lasts until the gate opens."""
        self.act_at_once(script, subject, point)
        if script.get(point) == "wait":
            while not self._gate(subject).exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def act_at_once(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Stop or die where a script says so, once."""
        match script.get(point):
            case "stop" if self._first(f"{subject}.{point}"):
                # To this thread: one that is sent to the process may let this thread run on for a while.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "die" if self._first(f"{subject}.{point}"):
                die()
            case _:
                pass

    def open_gate(self, subject: str) -> None:
        """Let those who wait go on."""
        self._gate(subject).touch()

    def _gate(self, subject: str) -> Path:
        return self._directory / f"{subject}.gate"

    def _first(self, name: str) -> bool:
        try:
            (self._directory / f"{name}.done").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def die() -> None:
    """End this process as a crash would: at once, with nothing tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)
