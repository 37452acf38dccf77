"""The processes under test: start them, restart them when they die, and stop them."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from kingdom.verify.history import History
from kingdom.verify.process_config import ProcessConfig, Role

COMMAND = (sys.executable, "-P", "-m", "kingdom.verify.process")
# The time limit for the end of a process. This is far more than a process needs, even on a busy machine.
_END_SECONDS = 300.0
_RESTART_SECONDS = 0.1


class FleetMember:
    """One slot of the fleet. When the process in the slot dies, a new process takes its place."""

    def __init__(self, role: Role, number: int) -> None:
        self.role: Role = role
        self.slot = f"{role}-{number}"
        self.process: Process | None = None
        self.supervision: asyncio.Task[None] | None = None
        self.ready = False
        self.stopped = False
        self.retired = False

    @property
    def running(self) -> bool:
        """Return whether the process has opened its bus and is not stopped."""
        return self.process is not None and self.process.returncode is None and self.ready and not self.stopped


class Fleet:
    """Starts a process for every member, and a new process when the old one dies, until the member is retired."""

    def __init__(
        self, template: ProcessConfig, history: History, rng: random.Random, *, command: Sequence[str] = COMMAND
    ) -> None:
        self._template = template
        self._history = history
        self._rng = rng
        self._command = tuple(command)
        self._incarnations = itertools.count(1)
        self.members: list[FleetMember] = []
        # These members get no faults.
        self.protected: list[FleetMember] = []

    def add(self, role: Role) -> FleetMember:
        """Add a member and start its process."""
        member = FleetMember(role, sum(m.role == role for m in self.all_members) + 1)
        (self.protected if role == "steady" else self.members).append(member)
        member.supervision = asyncio.create_task(self._supervise(member), name=f"verify-{member.slot}")
        return member

    @property
    def all_members(self) -> list[FleetMember]:
        """Return all members, including the protected ones."""
        return [*self.members, *self.protected]

    def send(self, member: FleetMember, number: signal.Signals) -> bool:
        """Send a signal. Return False if the member has no process."""
        if member.process is None or member.process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            # Process.send_signal would poll the process, and the event loop would then miss the exit code.
            os.kill(member.process.pid, number)
        member.stopped = number == signal.SIGSTOP or (member.stopped and number != signal.SIGCONT)
        return True

    def find_running(self, pids: Collection[int]) -> FleetMember | None:
        """Return a member that has one of these process ids and is not stopped."""
        running = (member for member in self.members if member.process is not None and not member.stopped)
        return next((member for member in running if member.process and member.process.pid in pids), None)

    async def retire(self, role: Role | None = None) -> None:
        """End the processes of a role, or all processes. Kill a process that does not end in time."""
        leaving = [member for member in self.all_members if role in (None, member.role)]
        for member in leaving:
            member.retired = True
            self.send(member, signal.SIGCONT)
            self.send(member, signal.SIGTERM)
        supervisions = [member.supervision for member in leaving if member.supervision]
        if supervisions:
            _, late = await asyncio.wait(supervisions, timeout=_END_SECONDS)
            for member in leaving:
                if member.supervision in late:
                    self._history.write("did_not_end", process=member.slot)
                    self.send(member, signal.SIGKILL)
            await asyncio.gather(*supervisions)

    async def _supervise(self, member: FleetMember) -> None:
        while not member.retired:
            name = f"{member.slot}.{next(self._incarnations)}"
            config = msgspec.structs.replace(
                self._template, role=member.role, name=name, seed=self._rng.getrandbits(32), parent=os.getpid()
            )
            await self._spawn(member, config)
            code = await self._configure_and_wait(member, config)
            self._history.write("exited", process=name, code=code, asked=member.retired)
            await asyncio.sleep(_RESTART_SECONDS)

    async def _spawn(self, member: FleetMember, config: ProcessConfig) -> None:
        pipe = asyncio.subprocess.PIPE
        with (Path(config.directory) / f"{config.name}.stderr").open("wb") as errors:
            member.process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=errors
            )
        member.ready = member.stopped = False
        self._history.write("spawned", process=config.name, pid=member.process.pid)
        if member.retired:
            self.send(member, signal.SIGKILL)

    async def _configure_and_wait(self, member: FleetMember, config: ProcessConfig) -> int:
        """Send the configuration, wait until the process is ready, then wait for its end. Return its exit code."""
        process = member.process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            await process.stdin.drain()
            process.stdin.close()
        member.ready = bool(await process.stdout.readline())
        return await process.wait()
