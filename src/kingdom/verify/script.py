"""The script of a job: its process stops, dies or waits at a named point, independent of chance."""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

_LOOK_EVERY_SECONDS = 0.02


class ScriptRunner:
    """Runs the scripts of one process. A shared directory remembers which steps are done."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def run(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Run the step of a script at a point. It stops or dies once; it waits until the gate opens."""
        self.run_now(script, subject, point)
        if script.get(point) == "wait":
            while not self._gate(subject).exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def run_now(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Stop or die, once, if the script says so."""
        match script.get(point):
            case "stop" if self._first(f"{subject}.{point}"):
                # Signal this thread: after a signal to the process, the thread could continue for a while.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "die" if self._first(f"{subject}.{point}"):
                die()
            case _:
                pass

    def open_gate(self, subject: str) -> None:
        """Let waiting processes continue."""
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
    """End this process like a crash, immediately and without cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)
