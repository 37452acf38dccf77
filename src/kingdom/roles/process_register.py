"""The register of the processes that run the roles of a court.

A process enters itself when it starts, and removes its entry when it stops as intended. So a process knows whether it
starts or stops the court as a whole, and whether it replaces a process of its role that died. This works with every
supervisor: `kingdom up`, systemd, containers.
"""

import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordKind
from kingdom.chronicle.catalog import to_log_entry
from kingdom.chronicle.events import InternalEvent, SessionRestarted, SystemStarted, SystemStopped
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import load_or_create, save_if_changed
from kingdom.court.heartbeat import ROLES, list_heartbeats
from kingdom.court.records import CURRENT
from kingdom.errors import KingdomError
from kingdom.soldiers.processes.process_table import process_identity
from kingdom.workflow.records import run_transaction

REGISTERS = RecordKind(name="court", directories={CURRENT: "state/court"})
# The role of the process `kingdom up`.
SUPERVISOR = "up"
_REGISTER = "processes"
_log = structlog.get_logger("kingdom.court")


class RegisteredProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a role. `identity` differs from that of every other process with the same pid on the machine."""

    role: str
    machine: str
    pid: int
    identity: str
    started_at: datetime


class ProcessRegister(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a court that have not stopped as intended, by their ids."""

    processes: dict[str, RegisteredProcess] = {}

    def without(self, *process_ids: str) -> "ProcessRegister":
        """Return the register without some processes."""
        left = {each: process for each, process in self.processes.items() if each not in process_ids}
        return ProcessRegister(processes=left)


class Registration:
    """The entry of this process in the register.

    A process on this machine is dead if the kernel does not list it. A process on another machine is dead if it sent no
    heartbeat for `silence_max`. A failure to write the register is only logged, since the role can work without it.
    """

    def __init__(self, bus: Bus, role: str, *, silence_max: timedelta, clock: Callable[[], datetime] = utc_now) -> None:
        self._bus = bus
        self._silence_max = silence_max
        self._clock = clock
        pid = os.getpid()
        self._id = f"{role}.{socket.gethostname()}.{pid}.{secrets.token_hex(2)}"
        self._own = RegisteredProcess(
            role=role, machine=socket.gethostname(), pid=pid, identity=process_identity(pid), started_at=clock()
        )
        self._is_first = False

    async def enter(self) -> None:
        """Enter this process. Log a restart if a process of its role died, and a start of the court if no process runs.

        The supervisor logs neither: its roles log their restarts, and it calls `log_start` when all roles have started.
        """

        async def act(transaction: Transaction) -> bool:
            record, register = await load_or_create(transaction, REGISTERS, _REGISTER, ProcessRegister)
            dead = await self._dead(transaction, register)
            is_first = dead.keys() == register.processes.keys()
            died = [each for each, process in dead.items() if process.role == self._own.role]
            if self._own.role in ROLES:
                # Each restart replaces one process. Processes of this machine and older ones are replaced first.
                died = sorted(died, key=lambda each: (dead[each].machine != self._own.machine, dead[each].started_at))
                died = died[:1]
                if died:
                    await self._log(transaction, SessionRestarted(target=self._own.role, pid=self._own.pid))
                if is_first:
                    await self._log(transaction, _system_started())
            left = register.without(*died)
            await save_if_changed(
                transaction, record, ProcessRegister(processes={**left.processes, self._id: self._own})
            )
            return is_first

        self._is_first = await self._try(act, "the start of this process could not be registered") or False

    async def log_start(self) -> None:
        """Log the start of the court if no other process ran when this process was entered."""

        async def act(transaction: Transaction) -> bool:
            await self._log(transaction, _system_started())
            return True

        if self._is_first:
            await self._try(act, "the start of the court could not be logged")

    async def leave(self, reason: str) -> None:
        """Remove the entry. Log that the court stopped, and clear the register, if no other process runs."""

        async def act(transaction: Transaction) -> bool:
            record, register = await load_or_create(transaction, REGISTERS, _REGISTER, ProcessRegister)
            left = register.without(self._id)
            is_last = (await self._dead(transaction, left)).keys() == left.processes.keys()
            if is_last:
                await self._log(transaction, SystemStopped(reason=reason))
            await save_if_changed(transaction, record, ProcessRegister() if is_last else left)
            return is_last

        await self._try(act, "the stop of this process could not be registered")

    async def _dead(self, transaction: Transaction, register: ProcessRegister) -> dict[str, RegisteredProcess]:
        heartbeats = {(each.role, each.machine, each.pid): each.at for each in await list_heartbeats(transaction)}
        now = self._clock()

        def is_dead(process: RegisteredProcess) -> bool:
            if process.machine == self._own.machine:
                return process_identity(process.pid) != process.identity
            last_sign = heartbeats.get((process.role, process.machine, process.pid), process.started_at)
            return now - max(last_sign, process.started_at) > self._silence_max

        return {each: process for each, process in register.processes.items() if is_dead(process)}

    async def _log(self, transaction: Transaction, event: InternalEvent) -> None:
        await transaction.append(to_log_entry(event, event.actor, self._clock()))

    async def _try(self, act: Callable[[Transaction], Awaitable[bool]], failure: str) -> bool | None:
        try:
            return await run_transaction(self._bus, act)
        except (KingdomError, OSError) as error:
            _log.warning(failure, role=self._own.role, error=str(error))
            return None


def _system_started() -> SystemStarted:
    from importlib.metadata import version  # noqa: PLC0415 - slow to import, and most commands start no role

    return SystemStarted(version=version("kingdom"))


def stop_reason(*, cut_off: bool) -> str:
    """Return why a process stopped, for the log."""
    return "two signals: running work was cut off" if cut_off else "a signal"
