"""Registered sessions in a real store: which are removed, what is logged, and which processes end."""

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
from tests.integration.court.chamberlain.scene import ChamberlainScene, assignment, run
from tests.integration.running import eventually

SOLDIER = "soldier-1770000000-000001"
LEASE = timedelta(minutes=5)


@pytest.fixture
async def box(scene: ChamberlainScene) -> Host:
    """A host on this machine, and a run whose agent SOLDIER is running. The tests register its session."""
    await scene.put(assignment("task-1", AssignmentStatus.IN_PROGRESS))
    await scene.put(run("wf-task-1", "RUNNING", SOLDIER, AgentStatus.RUNNING))
    return await register_host(scene.bus, "box", 3, LEASE, machine=socket.gethostname())


async def register_session(scene: ChamberlainScene, pid: int | None = None, started_at: datetime | None = None) -> None:
    session = SoldierSession(
        assignment_id="task-1", general="gen-pr", host="box", started_at=started_at or datetime.now(UTC), pid=pid
    )
    async with scene.bus.transaction() as transaction:
        await add_session(transaction, SOLDIER, session)


async def registered_sessions(scene: ChamberlainScene) -> list[str]:
    async with scene.bus.transaction() as transaction:
        return list(await list_sessions(transaction))


async def clean_up(scene: ChamberlainScene) -> None:
    """Clean up as if it were five minutes later."""
    await clean_up_sessions(scene.bus, datetime.now(UTC) + timedelta(minutes=5))


@contextmanager
def sleeping() -> Iterator[psutil.Process]:
    """A process and its child, neither of which ends by itself."""
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
        # A killed process stays a zombie until its parent waits for it.
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def process_and_child(process: psutil.Process) -> list[psutil.Process]:
    async def has_child() -> bool:
        return bool(process.children())

    await eventually(has_child)
    return [process, *process.children()]


@pytest.mark.usefixtures("box")
async def test_a_session_of_a_running_agent_is_not_changed(scene: ChamberlainScene) -> None:
    with sleeping() as process:
        await register_session(scene, process.pid)
        await clean_up(scene)
        assert (process.is_running(), await registered_sessions(scene)) == (True, [SOLDIER])
    assert await scene.event_counts() == {}


@pytest.mark.both_stores
async def test_a_session_whose_host_is_lost_is_orphaned(scene: ChamberlainScene, box: Host) -> None:
    await register_session(scene)
    await retire_host(scene.bus, box)
    await asyncio.gather(clean_up(scene), clean_up(scene))
    await clean_up(scene)
    assert await scene.logged("system.session_orphaned") == [{"soldier_id": SOLDIER, "task_id": "task-1"}]
    assert await scene.logged("recovery.sessions_cleaned") == [{"removed_count": 1}]
    assert await registered_sessions(scene) == []


@pytest.mark.usefixtures("box")
async def test_a_session_whose_process_is_gone_is_orphaned(scene: ChamberlainScene) -> None:
    with sleeping() as process:
        pid = process.pid
    await register_session(scene, pid)
    await clean_up(scene)
    assert (await scene.event_counts())["system.session_orphaned"] == 1


@pytest.mark.usefixtures("box")
async def test_all_processes_of_a_session_of_a_cancelled_run_are_killed(scene: ChamberlainScene) -> None:
    await scene.put(run("wf-task-1", "CANCELLED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        processes = await process_and_child(process)
        await register_session(scene, process.pid)
        await clean_up(scene)
        assert [has_ended(each) for each in processes] == [True, True]
    killed = [{"soldier_id": SOLDIER, "reason": "orphaned"}]
    assert await scene.logged("soldier.killed") == await scene.logged("recovery.session_killed") == killed
    assert await registered_sessions(scene) == []


@pytest.mark.usefixtures("box")
async def test_a_session_that_exceeds_its_time_limit_is_killed_with_the_reason_timeout(scene: ChamberlainScene) -> None:
    await scene.put(run("wf-task-1", "FAILED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        await register_session(scene, process.pid)
        async with scene.bus.transaction() as transaction:
            await mark_timed_out(transaction, SOLDIER)
        await clean_up(scene)
        assert has_ended(process)
    assert await scene.logged("recovery.session_killed") == [{"soldier_id": SOLDIER, "reason": "timeout"}]


@pytest.mark.usefixtures("box")
async def test_another_process_with_the_pid_of_an_ended_session_is_not_killed(scene: ChamberlainScene) -> None:
    await scene.put(run("wf-task-1", "COMPLETED", SOLDIER, AgentStatus.STOPPED))
    with sleeping() as process:
        await register_session(scene, process.pid, datetime.now(UTC) - timedelta(hours=1))
        await clean_up(scene)
        assert process.is_running()
    assert await scene.event_counts() == {"recovery.sessions_cleaned": 1}


async def test_an_ended_session_is_removed_from_the_registry(scene: ChamberlainScene) -> None:
    await register_session(scene)
    async with scene.bus.transaction() as transaction:
        await remove_session(transaction, SOLDIER)
        await remove_session(transaction, "soldier-nobody")
    assert await registered_sessions(scene) == []


async def test_the_registry_files_are_in_the_documented_place(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    if backend.name != "files":
        pytest.skip("only a store of files has a file")
    await register_session(scene)
    assert SOLDIER in (scene.directory / "state" / "sessions.json").read_text()
