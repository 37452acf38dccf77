"""The roles of a court as processes of one: started in order, started again when they end, ended together.

When the one is killed, the kernel kills the others with it.
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
from kingdom.court.heartbeat import ROLES
from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import Program, start_program

LOCK = "up.lock"
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 60.0
# Who ran for so long was well: the next pause is the shortest again.
_WELL_SECONDS = 60.0
# The exit code of a role that another start would not help.
_WRONG_SETTINGS = 2
_CORRECT = "correct them and start `kingdom up` again"
_log = structlog.get_logger("kingdom.supervisor")


class State(StrEnum):
    """What the process of a role does now."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Child:
    """The process of a role; `restarts` counts all, `in_a_row` those after which it did not get well."""

    role: str
    state: State = State.WAITING
    program: Program | None = None
    started_at: datetime | None = None
    restarts: int = 0
    in_a_row: int = 0
    last_end: str = ""
    # Somebody ended it to have it started again, and waits for its new process id.
    wanted: "asyncio.Future[int] | None" = None

    @property
    def pid(self) -> int | None:
        """Return its process id, while it runs."""
        return self.program.pid if self.program else None

    def pause_after(self, lasted_seconds: float) -> float:
        """Return how long to wait before the next start: twice as long each time, until it was well for a while."""
        if lasted_seconds >= _WELL_SECONDS:
            self.in_a_row = 0
        self.in_a_row += 1
        return float(min(_PAUSE_SECONDS * 2 ** min(self.in_a_row - 1, 30), _PAUSE_SECONDS_MAX))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is anybody to get it."""
        if self.program and self.program.running:
            with suppress(ProcessLookupError):
                os.kill(self.program.pid, number)


class RoleProcesses:
    """Keeps one process for each role until it is stopped; `hear` gets every line that one of them writes."""

    def __init__(
        self,
        roles: Collection[str],
        command: Callable[[str], Sequence[str]],
        environment: Mapping[str, str],
        hear: Callable[[str, bytes], None],
    ) -> None:
        self.children = {role: Child(role=role) for role in ROLES if role in roles}
        self._command = command
        self._directory = Path.cwd()
        self._environment = environment
        self._hear = hear
        self.started = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Return whether every role was asked to end."""
        return self._stopping.is_set()

    async def run(self) -> None:
        """Start every role in order, keep it running until stopped, and return when none runs any more."""
        keepers: list[asyncio.Task[None]] = []
        try:
            for child in self.children.values():
                await self._start(child)
            self.started.set()
            keepers = [asyncio.create_task(self._keep(child)) for child in self.children.values()]
            await asyncio.gather(*keepers)
            if not self._stopping.is_set():
                raise Misconfigured(f"no role runs, since the settings of each are wrong: {_CORRECT}")
        finally:
            # Where one failed the others would start again what is killed here.
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            for child in self.children.values():
                if child.program:
                    await child.program.kill()

    def stop(self, *, at_once: bool = False) -> None:
        """Ask every role to end, who lets new things in first; a second time they leave what they are at."""
        if at_once or not self._stopping.is_set():
            for child in reversed(self.children.values()):
                child.signal(signal.SIGTERM)
        self._stopping.set()

    def roles(self) -> Collection[str]:
        """Return the roles that it keeps running."""
        return tuple(self.children)

    async def restart(self, role: str) -> int:
        """End what is left of a role and start it again; returns its process id."""
        child = self.children[role]
        child.wanted = child.wanted or asyncio.get_running_loop().create_future()
        # Who gives no sign of life may not hear a milder one.
        child.signal(signal.SIGKILL)
        return await asyncio.shield(child.wanted)

    async def _keep(self, child: Child) -> None:
        while child.program:
            began = time.monotonic()
            code = await self._listen(child.role, child.program)
            child.last_end, child.program = describe_exit(code), None
            lasted = time.monotonic() - began
            if code == _WRONG_SETTINGS and lasted < _WELL_SECONDS and not (child.restarts or child.wanted):
                _log.error(f"role not started again: its settings are wrong, {_CORRECT}", role=child.role)
                break
            await self._start_again(child, 0.0 if child.wanted else child.pause_after(lasted))
        child.state = State.ENDED

    async def _start_again(self, child: Child, pause: float) -> None:
        """Start a role after a pause, and after another where the machine lacks something for it just now."""
        while not (child.program or self._stopping.is_set()):
            await self._pause(child, pause)
            if self._stopping.is_set():
                break
            child.restarts += 1
            try:
                await self._start(child)
            except ProgramFailed as error:
                child.last_end, pause = str(error), child.pause_after(0.0)

    async def _pause(self, child: Child, seconds: float) -> None:
        child.state = State.WAITING
        words = f"role ended, starting it again in {seconds:g} s"
        _log.warning(words, role=child.role, end=child.last_end, restarts=child.restarts + 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _start(self, child: Child) -> None:
        # Each has a session of its own, so that Ctrl-C at a terminal reaches only who ends them in their order.
        child.program = await start_program(
            self._command(child.role), cwd=self._directory, environment=self._environment, errors=None, contained=False
        )
        child.program.close_input()
        child.started_at, child.state = utc_now(), State.RUNNING
        if child.wanted:
            child.wanted.set_result(child.program.pid)
            child.wanted = None
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)

    async def _listen(self, role: str, program: Program) -> int:
        async def hear() -> None:
            async for line in program.lines():
                # A line that cannot be passed on is lost; a role whose lines nobody reads would stand still.
                with suppress(OSError):
                    self._hear(role, line)

        hearing = asyncio.create_task(hear())
        try:
            code = await program.wait()
            await hearing
        finally:
            hearing.cancel()
        return code


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the realm for this process alone while the block runs; refuses where another one does."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise Misconfigured(
                f"`kingdom up` runs already for {directory} ({holder}): see `kingdom status`, or end that one first"
            ) from error
        file.truncate(0)
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        yield
