"""The script of a job: it makes the process stop, die or wait at a named point of its work."""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

_LOOK_EVERY_SECONDS = 0.02


class ScriptRunner:
    """Runs the scripts of one process. Files in a shared directory mark the steps that are done."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def run(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Run the step that a script has for this point.

        A step to stop or die runs only once. A step to wait ends when the gate of the subject is opened.
        """
        self.run_now(script, subject, point)
        if script.get(point) == "wait":
            while not self._gate(subject).exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def run_now(self, script: Mapping[str, str], subject: str, point: str) -> None:
        """Stop or die if the script has such a step for this point and the step was not run before."""
        match script.get(point):
            case "stop" if self._mark_done(f"{subject}.{point}"):
                # The signal goes to this thread. After a signal to the process, the thread could run on for a while.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "die" if self._mark_done(f"{subject}.{point}"):
                die()
            case _:
                pass

    def open_gate(self, subject: str) -> None:
        """Let the processes that wait for this subject continue."""
        self._gate(subject).touch()

    def _gate(self, subject: str) -> Path:
        return self._directory / f"{subject}.gate"

    def _mark_done(self, name: str) -> bool:
        """Mark a step as done. Return False if it was done before."""
        try:
            (self._directory / f"{name}.done").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def die() -> None:
    """End this process like a crash, immediately and without cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)
