"""One run with one crash: start its processes, restart the victim, and read the result."""

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bench.crash_sweep.ending import Ending, read_ending
from bench.crash_sweep.roles import CLIENT, Outcome, Stage, die_with_parent, start
from bench.crash_sweep.steps import ENGINE, HOST, Point

_ROLES = (ENGINE, HOST, CLIENT)
_POLL_SECONDS = 0.005
# Extra time for the start and the end of the processes.
_SPARE_SECONDS = 300.0
_LOG_SHOWN = 1500


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. `killed_at` is the step at which the victim died, or None if it did not die."""

    point: Point | None
    killed_at: str | None
    seconds: float
    counts: dict[str, dict[str, int]]
    complaints: list[str]
    ending: Ending | None


def begin_trial(stage: Stage, point: Point | None) -> int:
    """Execute a run in its own process and return its pid. The result can be read after it has ended."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with_parent()
        _result(stage).write_bytes(msgspec.json.encode(_try(stage, point)))
        code = 0
    except BaseException:  # noqa: BLE001 - this process ends here, whatever the error was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def read_trial(stage: Stage) -> Trial:
    """Return the result of a run."""
    return msgspec.json.decode(_result(stage).read_bytes(), type=Trial)


def _result(stage: Stage) -> Path:
    return stage.directory / "trial.json"


def _try(stage: Stage, point: Point | None) -> Trial:
    began = time.monotonic()
    processes = _Processes(stage, point)
    complaints = [*processes.until_client_ends(), *processes.end()]
    ending = None
    if stage.outcome.exists():
        outcome = msgspec.json.decode(stage.outcome.read_bytes(), type=Outcome)
        ending = asyncio.run(read_ending(stage, outcome))
    return Trial(
        point=point,
        killed_at=stage.note.read_text() if stage.note.exists() else None,
        seconds=round(time.monotonic() - began, 3),
        counts={
            role: msgspec.json.decode(file.read_bytes()) for role in _ROLES if (file := stage.counts(role)).exists()
        },
        complaints=complaints,
        ending=ending,
    )


class _Processes:
    """The processes of one run. One of them may kill itself once."""

    def __init__(self, stage: Stage, point: Point | None) -> None:
        self._stage = stage
        self._victim = point.role if point else None
        self._running = {start(role, stage, point): role for role in _ROLES}

    def until_client_ends(self) -> Iterator[str]:
        """Wait for the client, restart the victim after its crash, and report any other exit."""
        for pid, status in self._ends(self._stage.seconds + _SPARE_SECONDS):
            role = self._running.pop(pid)
            if self._killed_itself(role, status):
                self._victim = None
                self._running[start(role, self._stage)] = role
            elif status or role != CLIENT:
                yield self._unexpected(role, status)
                return
            else:
                return
        yield "the client did not end"

    def end(self) -> Iterator[str]:
        """End the remaining processes gracefully, the engine last, and report those that do not end."""
        for last in (False, True):
            ending = {pid: role for pid, role in self._running.items() if (role == ENGINE) is last}
            for pid in ending:
                os.kill(pid, signal.SIGTERM)
            yield from self._until_ended(ending)

    def _until_ended(self, ending: Mapping[int, str]) -> Iterator[str]:
        for pid, status in self._ends(_SPARE_SECONDS, ending):
            role = self._running.pop(pid)
            # The last steps happen during the shutdown. A victim that dies there is not restarted.
            if status and not self._killed_itself(role, status):
                yield self._unexpected(role, status)
        for pid in ending.keys() & self._running.keys():
            role = self._running.pop(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            yield f"the {role} did not end when it was asked to"

    def _killed_itself(self, role: str, status: int) -> bool:
        return role == self._victim and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def _ends(self, seconds: float, of: Mapping[int, str] | None = None) -> Iterator[tuple[int, int]]:
        """Yield each exit until none of these processes runs. Without `of`, wait for all processes."""
        deadline = time.monotonic() + seconds
        while self._running.keys() & (self._running if of is None else of).keys() and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                yield pid, status
            else:
                time.sleep(_POLL_SECONDS)

    def _unexpected(self, role: str, status: int) -> str:
        words = self._stage.log(role).read_text()[-_LOG_SHOWN:]
        return f"the {role} ended with {os.waitstatus_to_exitcode(status)}: {words}"
