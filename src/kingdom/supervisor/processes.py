"""Run every role as a child process: start the roles in order, restart a role that ends, and stop all together.

The kernel kills the children if the supervisor is killed.
"""

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import structlog

from kingdom.clock import utc_now
from kingdom.court.heartbeat import ROLES, WEB
from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import Program, start_program

LOCK_NAME = "up.lock"
# The first and the longest pause before a restart.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 60.0
# A process that ran for this time counts as healthy, and the pause before its next restart is the shortest again.
_HEALTHY_SECONDS = 60.0
# The exit code of a role whose settings are wrong. A restart cannot help.
_WRONG_SETTINGS = 2
_SETTINGS_HINT = "correct them and start `kingdom up` again"
_log = structlog.get_logger("kingdom.supervisor")


class ProcessState(StrEnum):
    """The state of the process of a role."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class RoleProcess:
    """The process of a role.

    `restarts` counts all restarts, `failed_restarts` the restarts since the process was last healthy. `last_end` tells
    how the last process ended.
    """

    role: str
    state: ProcessState = ProcessState.WAITING
    program: Program | None = None
    started_at: datetime | None = None
    restarts: int = 0
    failed_restarts: int = 0
    last_end: str = ""
    # Set from a request to restart the process until the new process runs.
    restart_requested: bool = False

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None if it is not running."""
        return self.program.pid if self.program else None

    def pause_after(self, lasted_seconds: float) -> float:
        """Return the pause before the next start. It doubles with each restart until the process has been healthy."""
        if lasted_seconds >= _HEALTHY_SECONDS:
            self.failed_restarts = 0
        self.failed_restarts += 1
        return float(min(_PAUSE_SECONDS * 2 ** min(self.failed_restarts - 1, 30), _PAUSE_SECONDS_MAX))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.program and self.program.running:
            with suppress(ProcessLookupError):
                os.kill(self.program.pid, number)


class RoleProcesses:
    """Keeps one process per role running until stopped.

    `command` returns the command line of a role. `on_line` gets the role and every line of its output.
    """

    def __init__(
        self,
        roles: Collection[str],
        command: Callable[[str], Sequence[str]],
        environment: Mapping[str, str],
        on_line: Callable[[str, bytes], None],
    ) -> None:
        self.children = {role: RoleProcess(role=role) for role in (*ROLES, WEB) if role in roles}
        self._command = command
        self._directory = Path.cwd()
        self._environment = environment
        self._on_line = on_line
        self.started = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Return whether a stop was requested."""
        return self._stopping.is_set()

    async def run(self) -> None:
        """Start every role in order, and keep all roles running until stopped. Return when no role is running."""
        keepers: list[asyncio.Task[None]] = []
        try:
            for child in self.children.values():
                await self._start(child)
            self.started.set()
            keepers = [asyncio.create_task(self._keep_running(child)) for child in self.children.values()]
            await asyncio.gather(*keepers)
            if not self._stopping.is_set():
                raise Misconfigured(f"no role runs because the settings of every role are wrong: {_SETTINGS_HINT}")
        finally:
            # The keepers are cancelled first, because they would restart the processes that are killed below.
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            for child in self.children.values():
                if child.program:
                    await child.program.kill()

    def stop(self, *, at_once: bool = False) -> None:
        """Ask every role to end, starting with the last one. With `at_once` the roles abort their current work."""
        if at_once or not self._stopping.is_set():
            for child in reversed(self.children.values()):
                child.signal(signal.SIGTERM)
        self._stopping.set()

    def roles(self) -> Collection[str]:
        """Return the roles of this supervisor."""
        return tuple(self.children)

    def restart(self, role: str) -> None:
        """Kill the process of a role. It starts again without a pause, unless it cannot be started."""
        child = self.children[role]
        child.restart_requested = True
        # A process that sends no heartbeats may not react to SIGTERM.
        child.signal(signal.SIGKILL)

    async def _keep_running(self, child: RoleProcess) -> None:
        while child.program:
            began = time.monotonic()
            code = await self._forward_output(child.role, child.program)
            child.last_end, child.program = describe_exit(code), None
            lasted = time.monotonic() - began
            if (
                code == _WRONG_SETTINGS
                and lasted < _HEALTHY_SECONDS
                and not (child.restarts or child.restart_requested)
            ):
                _log.error(f"role is not restarted because its settings are wrong: {_SETTINGS_HINT}", role=child.role)
                break
            await self._restart_after(child, 0.0 if child.restart_requested else child.pause_after(lasted))
        child.state = ProcessState.ENDED

    async def _restart_after(self, child: RoleProcess, pause: float) -> None:
        """Start a role after a pause. If the start fails, try again after a longer pause."""
        while not (child.program or self._stopping.is_set()):
            await self._pause(child, pause)
            if self._stopping.is_set():
                break
            child.restarts += 1
            try:
                await self._start(child)
            except ProgramFailed as error:
                child.last_end, pause = str(error), child.pause_after(0.0)

    async def _pause(self, child: RoleProcess, seconds: float) -> None:
        child.state = ProcessState.WAITING
        message = f"role ended, restarting it in {seconds:g} s"
        _log.warning(message, role=child.role, end=child.last_end, restarts=child.restarts + 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _start(self, child: RoleProcess) -> None:
        # Each role has its own session, so Ctrl-C reaches only the supervisor. The supervisor stops the roles in order.
        child.program = await start_program(
            self._command(child.role), cwd=self._directory, environment=self._environment, errors=None, contained=False
        )
        child.program.close_input()
        child.started_at, child.state, child.restart_requested = utc_now(), ProcessState.RUNNING, False
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)

    async def _forward_output(self, role: str, program: Program) -> int:
        """Forward the output of a process until it ends, and return its exit code."""

        async def forward() -> None:
            async for line in program.lines():
                # A line that cannot be forwarded is dropped, since an unread pipe would block the role.
                with suppress(OSError):
                    self._on_line(role, line)

        forwarding = asyncio.create_task(forward())
        try:
            code = await program.wait()
            await forwarding
        finally:
            forwarding.cancel()
        return code


@contextmanager
def hold_realm(directory: Path) -> Iterator[None]:
    """Hold the lock of a realm during the block; raise Misconfigured if another process holds the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_NAME
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise Misconfigured(
                f"`kingdom up` already runs for {directory} ({holder}): see `kingdom status`, or stop it first"
            ) from error
        file.truncate(0)
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        yield
