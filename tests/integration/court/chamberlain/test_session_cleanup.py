"""Sessions on the books of a real store: what leaves them, what is said of it, and which processes end."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from kingdom.court.chamberlain.session_cleanup import clean_up_sessions
from kingdom.court.documents import AssignmentStatus
from kingdom.court.sessions import SoldierSession, add_session, list_sessions, mark_timed_out, remove_session
from kingdom.workflow.hosts import register_host, retire_host
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.status import AgentStatus
from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.scene import House, assignment, run
from tests.integration.running import eventually

SOLDIER = "soldier-1770000000-000001"
LEASE = timedelta(minutes=5)


@pytest.fixture
async def box(house: House) -> Host:
    """A host on this machine, for whose run a session works."""
    await house.put(assignment("task-1", AssignmentStatus.IN_PROGRESS))
    await house.put(run("wf-task-1", "RUNNING", SOLDIER, AgentStatus.RUNNING))
    return await register_host(house.bus, "box", 3, LEASE, machine=socket.gethostname())


async def note(house: House, pid: int | None = None, started_at: datetime | None = None) -> None:
    session = SoldierSession(
        assignment_id="task-1", general="gen-pr", host="box", started_at=started_at or datetime.now(UTC), pid=pid
    )
    async with house.bus.transaction() as transaction:
        await add_session(transaction, SOLDIER, session)


async def on_the_books(house: House) -> list[str]:
    async with house.bus.transaction() as transaction:
        return list(await list_sessions(transaction))


async def look(house: House) -> None:
    await clean_up_sessions(house.bus, datetime.now(UTC) + timedelta(minutes=5))


@contextmanager
def sleeping() -> Iterator[psutil.Process]:
    """A process with a child that never end by themselves."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
                each.kill()
            process.kill()


def has_ended(process: psutil.Process) -> bool:
    try:
        # Whoever must take note of its end may not have done so yet.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def family(process: psutil.Process) -> list[psutil.Process]:
    async def has_child() -> bool:
        return bool(process.children())

    await eventually(has_child)
    return [process, *process.children()]


@pytest.mark.usefixtures("box")
async def test_a_session_that_works_is_left_alone(house: House) -> None:
    with sleeping() as process:
        await note(house, process.pid)
        await look(house)
        assert (process.is_running(), await on_the_books(house)) == (True, [SOLDIER])
    assert await house.said() == {}


@pytest.mark.both_stores
async def test_a_session_whose_host_is_lost_is_orphaned(house: House, box: Host) -> None:
    await note(house)
    await retire_host(house.bus, box)
    await asyncio.gather(look(house), look(house))
    await look(house)
    assert await house.logged("system.session_orphaned") == [{"soldier_id": SOLDIER, "task_id": "task-1"}]
    assert await house.logged("recovery.sessions_cleaned") == [{"removed_count": 1}]
    assert await on_the_books(house) == []


@pytest.mark.usefixtures("box")
async def test_a_session_whose_process_is_gone_is_orphaned(house: House) -> None:
    with sleeping() as process:
        pid = process.pid
    await note(house, pid)
    await look(house)
    assert (await house.said())["system.session_orphaned"] == 1


@pytest.mark.usefixtures("box")
async def test_an_unwanted_session_is_ended_with_all_its_processes(house: House) -> None:
    await house.put(run("wf-task-1", "CANCELLED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        processes = await family(process)
        await note(house, process.pid)
        await look(house)
        assert [has_ended(each) for each in processes] == [True, True]
    killed = [{"soldier_id": SOLDIER, "reason": "orphaned"}]
    assert await house.logged("soldier.killed") == await house.logged("recovery.session_killed") == killed
    assert await on_the_books(house) == []


@pytest.mark.usefixtures("box")
async def test_a_session_that_runs_on_after_its_time_limit_is_ended_for_that(house: House) -> None:
    await house.put(run("wf-task-1", "FAILED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        await note(house, process.pid)
        async with house.bus.transaction() as transaction:
            await mark_timed_out(transaction, SOLDIER)
        await look(house)
        assert has_ended(process)
    assert await house.logged("recovery.session_killed") == [{"soldier_id": SOLDIER, "reason": "timeout"}]


@pytest.mark.usefixtures("box")
async def test_a_process_that_only_has_the_number_of_an_ended_session_lives_on(house: House) -> None:
    await house.put(run("wf-task-1", "COMPLETED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        await note(house, process.pid, datetime.now(UTC) - timedelta(hours=1))
        await look(house)
        assert process.is_running()
    assert await house.said() == {"recovery.sessions_cleaned": 1}


async def test_an_ended_session_is_removed_from_the_registry(house: House) -> None:
    await note(house)
    async with house.bus.transaction() as transaction:
        await remove_session(transaction, SOLDIER)
        await remove_session(transaction, "soldier-nobody")
    assert await on_the_books(house) == []


async def test_the_registry_files_are_in_the_documented_place(house: House, backend: BackendUnderTest) -> None:
    if backend.name != "files":
        pytest.skip("only a store of files has a file")
    await note(house)
    assert SOLDIER in (house.directory / "state" / "sessions.json").read_text()
