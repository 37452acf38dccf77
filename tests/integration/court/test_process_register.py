"""The register of processes: processes of other machines, and an unavailable store."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from kingdom.bus import Bus, LogCursor, Operations, Record
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import load_or_create, save_if_changed
from kingdom.court.heartbeat import HEARTBEATS, Heartbeat
from kingdom.court.records import CURRENT
from kingdom.errors import Unavailable
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.roles.process_register import REGISTERS, SUPERVISOR, ProcessRegister, RegisteredProcess, Registration
from kingdom.soldiers.processes.process_table import process_identity
from tests.contract.backends import BackendUnderTest

SILENCE_MAX = timedelta(seconds=120)
RESTARTED = "recovery.session_restarted"


@dataclass
class Court:
    """A store, and a clock that the test moves."""

    bus: Bus
    operations: Operations
    now: datetime = field(default_factory=utc_now)

    def registration(self, role: str, bus: Bus | None = None) -> Registration:
        return Registration(bus or self.bus, role, silence_max=SILENCE_MAX, clock=lambda: self.now)

    async def has_process(self, role: str, machine: str = "elsewhere", **process: Any) -> None:
        """Register a process, by default of another machine."""
        given = {"pid": 7, "identity": "boot.1", "started_at": self.now, **process}
        entry = RegisteredProcess(role=role, machine=machine, **given)
        async with self.bus.transaction() as transaction:
            record, register = await load_or_create(transaction, REGISTERS, "processes", ProcessRegister)
            processes = {**register.processes, f"{role}.{machine}.{given['pid']}": entry}
            await save_if_changed(transaction, record, ProcessRegister(processes=processes))

    async def has_heartbeat(self, role: str, at: datetime) -> None:
        heartbeat = Heartbeat(role=role, machine="elsewhere", pid=7, at=at)
        document = msgspec.to_builtins(heartbeat)
        async with self.bus.transaction() as transaction:
            await transaction.put(Record(kind=HEARTBEATS.name, id=f"{role}.7", state=CURRENT, doc=document))

    async def logged_types(self) -> list[str]:
        return [each.entry.type for each in await self.operations.read_log(LogCursor(), 1000)]


@pytest.fixture
async def court(backend: BackendUnderTest) -> AsyncIterator[Court]:
    application = declare_application(Realm())
    async with backend.open(application.topology, application.kinds) as bus:
        yield Court(bus, backend.operations(bus))


async def test_a_process_on_another_machine_counts_as_long_as_it_sends_heartbeats(court: Court) -> None:
    await court.has_process("king")
    await court.has_heartbeat("king", court.now + timedelta(seconds=200))
    court.now += timedelta(seconds=300)
    king = court.registration("king")
    await king.enter()
    await king.leave("a signal")
    assert await court.logged_types() == []
    court.now += timedelta(seconds=100)
    await court.registration("envoy").enter()
    assert await court.logged_types() == ["system.startup"]
    await court.registration("king").enter()
    assert await court.logged_types() == ["system.startup", RESTARTED]


async def test_a_process_on_another_machine_that_just_started_counts_before_its_first_heartbeat(court: Court) -> None:
    await court.has_process("king")
    await court.registration("king").enter()
    assert await court.logged_types() == []


async def test_a_later_process_with_the_same_id_does_not_hide_that_the_first_died(court: Court) -> None:
    here = os.uname().nodename
    await court.has_process("king", machine=here, pid=os.getpid(), identity=process_identity(os.getpid()))
    await court.registration("king").enter()
    assert await court.logged_types() == []
    await court.has_process("envoy", machine=here, pid=os.getpid(), identity="boot.1")
    await court.registration("envoy").enter()
    assert await court.logged_types() == [RESTARTED]


async def test_each_process_that_died_is_reported_once(court: Court) -> None:
    for pid in (7, 8):
        await court.has_process("king", pid=pid, started_at=court.now - timedelta(hours=1))
    for _ in range(3):
        await court.registration("king").enter()
    assert (await court.logged_types()).count(RESTARTED) == 2


async def test_a_process_that_died_before_the_court_stopped_is_not_logged_as_a_restart(court: Court) -> None:
    await court.has_process("king", started_at=court.now - timedelta(hours=1))
    supervisor = court.registration(SUPERVISOR)
    await supervisor.enter()
    assert await court.logged_types() == []
    await supervisor.log_start()
    await supervisor.leave("a signal")
    await court.registration("king").enter()
    assert await court.logged_types() == ["system.startup", "system.shutdown", "system.startup"]


class _Away:
    def transaction(self) -> Any:
        raise Unavailable("the store is away")


async def test_a_role_starts_and_stops_although_the_register_cannot_be_written(court: Court) -> None:
    role = court.registration("king", bus=_Away())  # type: ignore[arg-type]
    await role.enter()
    await role.log_start()
    await role.leave("a signal")
    assert await court.logged_types() == []
