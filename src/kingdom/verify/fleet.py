"""The processes under test: started, watched, started again when they die, and ended for sure."""

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
# Far more than a process needs, also on a machine that has much else to do.
_END_SECONDS = 300.0
_RESTART_SECONDS = 0.1


class FleetMember:
    """One place in the fleet, held by one process after another."""

    def __init__(self, role: Role, number: int) -> None:
        self.role: Role = role
        self.slot = f"{role}-{number}"
        self.process: Process | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.ready = False
        self.stopped = False
        self.retired = False

    @property
    def running(self) -> bool:
        """Tell whether a process is at work: it has opened its bus and is not stopped."""
        return self.process is not None and self.process.returncode is None and self.ready and not self.stopped


class Fleet:
    """Every member's process gets a part of its own; a member that dies comes back until it is retired."""

    def __init__(
        self, template: ProcessConfig, history: History, rng: random.Random, *, command: Sequence[str] = COMMAND
    ) -> None:
        self._template = template
        self._history = history
        self._rng = rng
        self._command = tuple(command)
        self._incarnations = itertools.count(1)
        self.members: list[FleetMember] = []
        # Never struck, and so not among those who are chosen from.
        self.spared: list[FleetMember] = []

    def add(self, role: Role) -> FleetMember:
        """Start one more process that comes back when it dies."""
        member = FleetMember(role, sum(m.role == role for m in self.everybody) + 1)
        (self.spared if role == "steady" else self.members).append(member)
        member.keeper = asyncio.create_task(self._keep(member), name=f"verify-{member.slot}")
        return member

    @property
    def everybody(self) -> list[FleetMember]:
        """Return all members, those that nobody strikes too."""
        return [*self.members, *self.spared]

    def send(self, member: FleetMember, what: signal.Signals) -> bool:
        """Send a signal; False where nobody is there to get it."""
        if member.process is None or member.process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            # Not through the process: that would look for its end first, and take the exit code away from the loop.
            os.kill(member.process.pid, what)
        member.stopped = what == signal.SIGSTOP or (member.stopped and what != signal.SIGCONT)
        return True

    def at_work(self, pids: Collection[int]) -> FleetMember | None:
        """Return a member whose process is one of these and is not stopped."""
        there = (member for member in self.members if member.process is not None and not member.stopped)
        return next((member for member in there if member.process and member.process.pid in pids), None)

    async def retire(self, role: Role | None = None) -> None:
        """Ask the members of a role, or all, to end; kill those that do not."""
        leaving = [member for member in self.everybody if role in (None, member.role)]
        for member in leaving:
            member.retired = True
            self.send(member, signal.SIGCONT)
            self.send(member, signal.SIGTERM)
        keepers = [member.keeper for member in leaving if member.keeper]
        if keepers:
            _, late = await asyncio.wait(keepers, timeout=_END_SECONDS)
            for member in leaving:
                if member.keeper in late:
                    self._history.write("did_not_end", process=member.slot)
                    self.send(member, signal.SIGKILL)
            await asyncio.gather(*keepers)

    async def _keep(self, member: FleetMember) -> None:
        while not member.retired:
            name = f"{member.slot}.{next(self._incarnations)}"
            part = msgspec.structs.replace(self._template, role=member.role, name=name, seed=self._rng.getrandbits(32))
            await self._spawn(member, part)
            code = await self._finish(member, part)
            self._history.write("exited", process=name, code=code, asked=member.retired)
            await asyncio.sleep(_RESTART_SECONDS)

    async def _spawn(self, member: FleetMember, part: ProcessConfig) -> None:
        pipe = asyncio.subprocess.PIPE
        with (Path(part.directory) / f"{part.name}.stderr").open("wb") as errors:
            member.process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=errors
            )
        member.ready = member.stopped = False
        self._history.write("spawned", process=part.name, pid=member.process.pid)
        if member.retired:
            self.send(member, signal.SIGKILL)

    async def _finish(self, member: FleetMember, part: ProcessConfig) -> int:
        """Hand the part over, wait for the word that the process is ready, and for its end."""
        process = member.process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("a process is started with pipes")
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(part) + b"\n")
            await process.stdin.drain()
            process.stdin.close()
        member.ready = bool(await process.stdout.readline())
        return await process.wait()
