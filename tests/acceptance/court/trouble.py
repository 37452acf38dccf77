"""Problems that the Chamberlain and `kingdom up` handle: orphaned sessions, leftover processes, and silent roles."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import yaml

from kingdom.bootstrap import migrate, open_bus, operations_of
from kingdom.bus import Bus, LogEntry
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import load_or_create
from kingdom.court.documents import Assignment
from kingdom.court.sessions import SoldierSession, add_session, list_sessions
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.roles.process_register import REGISTERS, ProcessRegister
from tests.acceptance.court.court import Court, read_log, wait
from tests.acceptance.court.packages import LOST, second_gate
from tests.acceptance.court.stories import Story, ended, mention
from tests.patience import PATIENCE_SECONDS

# Longer than the grace period of a registered session.
_LONG_AGO = timedelta(seconds=70)
_NOBODYS_SOLDIER = "soldier-1700000000-000001"


async def orphaned(court: Court) -> Story:
    """Record that the session of a working agent is on a host that does not exist. Wait until its run has ended."""
    await mention(court, LOST)
    task = await court.assignment(until="in_progress", repo=LOST)

    async def registered_soldier() -> str | None:
        async with court.bus.transaction() as transaction:
            sessions = await list_sessions(transaction)
        return next((soldier for soldier, session in sessions.items() if session.assignment_id == task.id), None)

    soldier = await wait(registered_soldier, "the session is registered")
    await _record_session(court, soldier, task, host="host-gone")
    await _until_logged(court, "system.session_orphaned", soldier)
    second_gate(court.processes).touch()
    return await ended(court, repo=LOST)


async def killed(court: Court, done: Assignment) -> int:
    """Leave a process running for an assignment that has ended. Return the exit code of the process."""
    program = "import time; time.sleep(600)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        await _record_session(court, _NOBODYS_SOLDIER, done, host="host-a", pid=process.pid)
        await _until_logged(court, "soldier.killed", _NOBODYS_SOLDIER)
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def up_and_down(directory: Path, url: str) -> list[LogEntry]:
    """Run a King under `kingdom up`, stop its heartbeat, then end it. Return the log of that court."""
    directory.mkdir()
    store = url or f"file:{directory / 'realm'}"
    await migrate(store)
    chamberlain = {"every_seconds": 1, "heartbeat": {"threshold_seconds": 5}}
    settings = {"database_url": store, "heartbeat_seconds": 1, "chamberlain": chamberlain}
    (directory / "kingdom.yaml").write_text(yaml.safe_dump(settings))
    application = declare_application(Realm())
    async with open_bus(store, application.topology, application.kinds) as bus:
        operations = operations_of(bus)

        async def logged_data(event_type: str) -> list[LogEntry]:
            return [entry for entry in await read_log(operations) if entry.type == event_type]

        async with _running_up(directory) as process:
            await wait(lambda: logged_data("system.startup"), "kingdom up says that all roles were started")
            # On a slow machine the King may already count as silent.
            before = len(await logged_data("recovery.session_restarted"))
            await wait(lambda: _is_registered(bus, "king"), "the King enters himself in the register")
            os.kill(await _king_of(process.pid), signal.SIGSTOP)

            async def is_revived() -> bool:
                return len(await logged_data("recovery.session_restarted")) > before

            await wait(is_revived, "the silent King is started again")
        await wait(lambda: logged_data("system.shutdown"), "kingdom up says that all roles were stopped")
        return await read_log(operations)


async def _is_registered(bus: Bus, role: str) -> bool:
    async with bus.transaction() as transaction:
        _, register = await load_or_create(transaction, REGISTERS, "processes", ProcessRegister)
    return any(process.role == role for process in register.processes.values())


@asynccontextmanager
async def _running_up(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with (directory / "up.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kingdom", "up", "--role", "king", "--json-logs"),
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        yield process
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0, (directory / "up.log").read_text()[-3000:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _king_of(pid: int) -> int:
    async def runs() -> int | None:
        children = psutil.Process(pid).children(recursive=True)
        return next((child.pid for child in children if "king" in child.cmdline()), None)

    return await wait(runs, "the King runs")


async def _record_session(court: Court, soldier: str, task: Assignment, *, host: str, pid: int | None = None) -> None:
    session = SoldierSession(
        assignment_id=task.id, general=task.target_general, host=host, started_at=_old_time(), pid=pid
    )
    async with court.bus.transaction() as transaction:
        await add_session(transaction, soldier, session)


def _old_time() -> datetime:
    return utc_now() - _LONG_AGO


async def _until_logged(court: Court, event_type: str, soldier: str) -> None:
    await wait(lambda: court.logged_data(event_type, soldier_id=soldier), f"{event_type} of {soldier}")
