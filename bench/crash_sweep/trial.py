"""One run with its crashes: start its processes, restart each victim, and read the result."""

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from bench.crash_sweep.course import Course
from bench.crash_sweep.ending import Ending
from bench.crash_sweep.merged.ending import MergedEnding
from bench.crash_sweep.process import die_with_parent, start
from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import CLIENT, Point, Steps

_POLL_SECONDS = 0.005
# Extra time for the start and the end of the processes.
_SPARE_SECONDS = 300.0
_LOG_SHOWN = 1500
_ENDING = {signal.SIGINT, signal.SIGTERM}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. `killed_at` is the step at which each victim died, if it died."""

    points: tuple[Point, ...]
    killed_at: dict[str, str]
    seconds: float
    counts: dict[str, dict[str, int]]
    complaints: list[str]
    ending: Ending | MergedEnding | None

    @property
    def killed(self) -> list[Point]:
        """Return the points that were reached."""
        return [point for point in self.points if point.role in self.killed_at]


def begin_trial(course: Course, stage: Stage, points: tuple[Point, ...]) -> int:
    """Execute a run in its own process and return its pid. The result can be read after it has ended."""
    if pid := _fork():
        return pid
    code = 1
    try:
        die_with_parent()
        _result(stage).write_bytes(msgspec.json.encode(_try(course, stage, points)))
        code = 0
    except BaseException:  # noqa: BLE001 - this process ends here, whatever the error was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def read_trial(stage: Stage) -> Trial:
    """Return the result of a run."""
    return msgspec.json.decode(_result(stage).read_bytes(), type=Trial)


def _fork() -> int:
    # Python ignores what a signal handler raises during a fork, so a SIGTERM then would not end the sweep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _result(stage: Stage) -> Path:
    return stage.directory / "trial.json"


def _try(course: Course, stage: Stage, points: tuple[Point, ...]) -> Trial:
    began = time.monotonic()
    processes = _Processes(course, stage, points)
    complaints = [*processes.until_client_ends(), *processes.end_roles()]
    ending = asyncio.run(course.read_ending(stage)) if stage.outcome.exists() else None
    complaints += processes.end_servers()
    victims = {point.role: stage.note(point.role) for point in points}
    counts = {role: stage.counts(role) for role in course.roles}
    return Trial(
        points=points,
        killed_at={role: note.read_text() for role, note in victims.items() if note.exists()},
        seconds=round(time.monotonic() - began, 3),
        counts={role: msgspec.json.decode(file.read_bytes()) for role, file in counts.items() if file.exists()},
        complaints=complaints,
        ending=ending,
    )


class _Processes:
    """The processes of one run. Some of its roles may kill themselves once."""

    def __init__(self, course: Course, stage: Stage, points: tuple[Point, ...]) -> None:
        self._course = course
        self._stage = stage
        self._victims = {point.role: point for point in points}
        self._running: dict[int, str] = {}
        for name in course.servers:
            self._start(name)
        course.set_up(stage)
        for name in (*course.roles, CLIENT):
            self._start(name, self._victims.get(name))

    def until_client_ends(self) -> Iterator[str]:
        """Wait for the client, restart each victim after its crash, and report any other exit."""
        for pid, status in self._ends(self._stage.seconds + _SPARE_SECONDS):
            role = self._running.pop(pid)
            if self._killed_itself(role, status):
                del self._victims[role]
                self._start(role)
            elif status or role != CLIENT:
                yield self._unexpected(role, status)
                return
            else:
                return
        yield "the client did not end"

    def end_roles(self) -> Iterator[str]:
        """End the client and the roles gracefully, and report those that do not end."""
        course = self._course
        yield from self._end({*course.roles, CLIENT} - {course.ends_last})
        yield from self._end({course.ends_last})

    def end_servers(self) -> Iterator[str]:
        """End the servers gracefully, and report those that do not end."""
        return self._end(self._course.servers.keys())

    def _start(self, role: str, victim: Point | None = None) -> None:
        course, stage = self._course, self._stage
        step_counter = Steps(role, victim, stage.note(role), by_label=course.distinct_steps)
        break_it = course.variants[stage.variant].break_it if stage.variant else None
        self._running[start(role, stage, course.plays[role], step_counter, break_it)] = role

    def _end(self, roles: Collection[str]) -> Iterator[str]:
        ending = {pid: role for pid, role in self._running.items() if role in roles}
        for pid in ending:
            os.kill(pid, signal.SIGTERM)
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
        return role in self._victims and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

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
