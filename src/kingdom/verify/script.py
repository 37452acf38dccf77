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

    async def run(self, script: Mapping[str, str], event_id: str, point: str) -> None:
        """Run the step that a script has for this point.

        A step to stop or die runs only once. A step to wait ends after `open_gate` was called for the same event. With
        `stop_then_wait`, the first process stops, and later ones wait.
        """
        acted = self.run_now(script, event_id, point)
        if script.get(point) == "wait" or (script.get(point) == "stop_then_wait" and not acted):
            while not self._gate(event_id).exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def run_now(self, script: Mapping[str, str], event_id: str, point: str) -> bool:
        """Stop or die if the script says so for this point, but only the first time. Return whether it stopped."""
        match script.get(point):
            case "stop" | "stop_then_wait" if self._mark_done(f"{event_id}.{point}"):
                # The signal goes to this thread. After a signal to the process, the thread could run on for a while.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
                return True
            case "die" if self._mark_done(f"{event_id}.{point}"):
                die()
            case _:
                pass
        return False

    def open_gate(self, event_id: str) -> None:
        """Let the processes that wait at a step of this event continue."""
        self._gate(event_id).touch()

    def _gate(self, event_id: str) -> Path:
        return self._directory / f"{event_id}.gate"

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
