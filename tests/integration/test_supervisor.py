"""The supervisor of roles. Small programs act as the roles."""

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil
import pytest

from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.chamberlain.settings import ChamberlainSettings, HeartbeatSettings
from kingdom.court.heartbeat import ROLES, FileHeartbeatWriter, Heartbeat
from kingdom.court.records import CURRENT
from kingdom.errors import Misconfigured
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.supervisor.processes import ProcessState, RoleProcess, RoleProcesses, hold_realm
from kingdom.supervisor.silent_roles import SilentRoleRestarter
from tests.patience import PATIENCE_SECONDS

PATIENT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print('here', flush=True);"
LIVES = PATIENT + "signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); signal.pause()"


class Scene:
    """Programs that act as roles, and their output. While `read_errors` has errors, reading a line raises one."""

    def __init__(self, **programs: str) -> None:
        self.lines_read: list[tuple[str, str]] = []
        self.read_errors: list[Exception] = []
        self._programs = programs
        self.processes = RoleProcesses(programs, self._command, dict(os.environ), self._read_line)

    def _command(self, role: str) -> Sequence[str]:
        return (sys.executable, "-I", "-S", "-c", self._programs[role])

    def _read_line(self, role: str, line: bytes) -> None:
        if self.read_errors:
            raise self.read_errors.pop()
        self.lines_read.append((role, line.decode()))

    def child(self, role: str) -> RoleProcess:
        return self.processes.children[role]

    async def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready():
            assert time.monotonic() < deadline, self.lines_read
            await asyncio.sleep(0.02)


@asynccontextmanager
async def playing(scene: Scene) -> AsyncIterator[None]:
    running = asyncio.create_task(scene.processes.run())
    try:
        await scene.processes.started.wait()
        yield
    finally:
        scene.processes.stop()
        scene.processes.stop(at_once=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextmanager
def ended(*pids: int | None) -> Iterator[None]:
    yield
    assert [pid for pid in pids if pid and psutil.pid_exists(pid)] == []


async def test_roles_start_in_order_and_end_together_when_asked() -> None:
    scene = Scene(**dict.fromkeys(reversed(ROLES), LIVES))
    running = asyncio.create_task(scene.processes.run())
    await scene.until(lambda: len(scene.lines_read) == len(ROLES))
    pids = [child.pid for child in scene.processes.children.values()]
    assert pids == sorted(pids, key=lambda pid: psutil.Process(pid).create_time())
    assert tuple(scene.processes.roles()) == ROLES
    with ended(*pids):
        scene.processes.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert {child.state for child in scene.processes.children.values()} == {ProcessState.ENDED}


async def test_a_role_that_ends_is_started_again_with_growing_pauses() -> None:
    scene = Scene(king="print('again', flush=True); raise SystemExit(3)", envoy=LIVES)
    async with playing(scene):
        await scene.until(lambda: scene.lines_read.count(("king", "again")) >= 2)
        assert (scene.child("king").restarts >= 1, scene.child("king").last_end) == (True, "exit code 3")
        assert scene.child("envoy").restarts == 0
    fresh = RoleProcess(role="king")
    assert [fresh.pause_after(0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert fresh.pause_after(61) == 1


async def test_a_role_whose_settings_are_wrong_is_not_restarted_and_if_all_are_wrong_the_supervisor_ends() -> None:
    scene = Scene(king="raise SystemExit(2)", envoy=LIVES)
    async with playing(scene):
        await scene.until(lambda: scene.child("king").state is ProcessState.ENDED)
        assert (scene.child("king").restarts, scene.child("king").last_end) == (0, "exit code 2")
        assert scene.child("envoy").state is ProcessState.RUNNING
    with pytest.raises(Misconfigured, match="no role runs because the settings of every role are wrong: correct them"):
        await Scene(king="raise SystemExit(2)").processes.run()


async def test_a_role_that_cannot_be_restarted_is_tried_later_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "comes back"
    directory.mkdir()
    monkeypatch.chdir(directory)
    scene = Scene(king=LIVES, envoy=LIVES)
    async with playing(scene):
        await scene.until(lambda: len(scene.lines_read) == 2)
        directory.rmdir()
        scene.processes.restart("king")
        await scene.until(lambda: "No such file" in scene.child("king").last_end)
        directory.mkdir()
        await scene.until(lambda: scene.child("king").state is ProcessState.RUNNING)
        assert (scene.child("envoy").restarts, scene.child("envoy").state) == (0, ProcessState.RUNNING)


async def test_an_unexpected_error_at_one_role_ends_the_supervisor_and_all_tasks() -> None:
    scene = Scene(king="print('here')", envoy="import signal; signal.pause()")
    scene.read_errors.append(ValueError("a fault"))
    with pytest.raises(ValueError, match="a fault"):
        await scene.processes.run()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_log_line_that_cannot_be_written_is_lost_and_nothing_else() -> None:
    # The pipe of a role holds less than this.
    scene = Scene(
        king="for _ in range(300): print('x' * 1000)\nprint('end', flush=True)\nimport signal; signal.pause()"
    )
    scene.read_errors.append(OSError(errno.ENOSPC, "the disk is full"))
    async with playing(scene):
        await scene.until(lambda: scene.lines_read[-1:] == [("king", "end")])
    assert len(scene.lines_read) == 300


async def test_a_role_that_ignores_sigterm_is_killed_when_the_supervisor_is_cancelled() -> None:
    scene = Scene(king=STUBBORN)
    running = asyncio.create_task(scene.processes.run())
    await scene.until(lambda: scene.lines_read)
    with ended(scene.child("king").pid):
        scene.processes.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Hours:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = utc_now()

    async def pass_by(
        self, silence: SilentRoleRestarter, seconds: int, *signs: FileHeartbeatWriter, step: int = 20
    ) -> None:
        for _ in range(0, seconds, step):
            self.now += timedelta(seconds=step)
            for sign in signs:
                await sign.beat(self.now)
            await silence.check()


async def test_a_silent_role_is_ended_and_started_again(realm: Path) -> None:
    settings = ChamberlainSettings(every_seconds=10, heartbeat=HeartbeatSettings(threshold_seconds=100))
    scene, hours = Scene(king=STUBBORN, chamberlain=STUBBORN), Hours()
    king, chamberlain = FileHeartbeatWriter(realm, "king"), FileHeartbeatWriter(realm, "chamberlain")
    async with (
        open_bus(f"file:{realm}", declare_application(Realm()).topology, declare_application(Realm()).kinds) as bus,
        playing(scene),
    ):
        silence = SilentRoleRestarter(bus, scene.processes, settings, store=realm, clock=lambda: hours.now)
        await hours.pass_by(silence, 100, king)
        assert scene.child("chamberlain").restarts == 0
        await hours.pass_by(silence, 60, king)
        await scene.until(lambda: scene.child("chamberlain").restarts)
        assert scene.child("king").restarts == 0
        await hours.pass_by(silence, 160, chamberlain)
        await scene.until(lambda: scene.child("king").restarts)
        # The Chamberlain reports this for all other roles.
        assert await _logged(bus, "system.heartbeat_missed", "chamberlain", "threshold_seconds") == [100]
        assert await _logged(bus, "system.heartbeat_missed", "king", "threshold_seconds") == []


async def test_a_silent_role_that_cannot_be_started_again_does_not_delay_the_others(
    realm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "removed"
    directory.mkdir()
    monkeypatch.chdir(directory)
    settings = ChamberlainSettings(every_seconds=10, heartbeat=HeartbeatSettings(threshold_seconds=100))
    scene, hours = Scene(king=STUBBORN, envoy=STUBBORN), Hours()
    async with (
        open_bus(f"file:{realm}", declare_application(Realm()).topology, declare_application(Realm()).kinds) as bus,
        playing(scene),
    ):
        silence = SilentRoleRestarter(bus, scene.processes, settings, store=realm, clock=lambda: hours.now)
        directory.rmdir()
        await asyncio.wait_for(hours.pass_by(silence, 160), PATIENCE_SECONDS)
        await scene.until(lambda: all("No such file" in scene.child(role).last_end for role in ("king", "envoy")))


async def test_no_role_is_restarted_after_the_machine_was_suspended(realm: Path) -> None:
    settings = ChamberlainSettings(every_seconds=10, heartbeat=HeartbeatSettings(threshold_seconds=100))
    scene, hours = Scene(king=STUBBORN), Hours()
    async with (
        open_bus(f"file:{realm}", declare_application(Realm()).topology, declare_application(Realm()).kinds) as bus,
        playing(scene),
    ):
        silence = SilentRoleRestarter(bus, scene.processes, settings, store=realm, clock=lambda: hours.now)
        await hours.pass_by(silence, 3600, step=3600)
        await hours.pass_by(silence, 100)
        assert scene.child("king").restarts == 0
        await hours.pass_by(silence, 40)
        await scene.until(lambda: scene.child("king").restarts)


async def test_a_role_that_is_ending_does_not_count_as_silent(realm: Path) -> None:
    settings = ChamberlainSettings(every_seconds=10, heartbeat=HeartbeatSettings(threshold_seconds=100))
    scene, hours = Scene(king=STUBBORN), Hours()
    async with (
        open_bus(f"file:{realm}", declare_application(Realm()).topology, declare_application(Realm()).kinds) as bus,
        playing(scene),
    ):
        await scene.until(lambda: scene.lines_read)
        silence = SilentRoleRestarter(bus, scene.processes, settings, store=realm, clock=lambda: hours.now)
        scene.processes.stop()
        await hours.pass_by(silence, 200)
        assert scene.child("king").state is ProcessState.RUNNING
        assert scene.child("king").restarts == 0


async def test_in_a_database_a_role_of_another_machine_or_version_does_not_hide_a_silent_one_here(dsn: str) -> None:
    settings = ChamberlainSettings(every_seconds=10, heartbeat=HeartbeatSettings(threshold_seconds=100))
    scene, hours = Scene(king=STUBBORN, envoy=STUBBORN), Hours()
    async with (
        open_bus(dsn, declare_application(Realm()).topology, declare_application(Realm()).kinds) as bus,
        playing(scene),
    ):
        silence = SilentRoleRestarter(bus, scene.processes, settings, store=None, clock=lambda: hours.now)
        async with bus.transaction() as transaction:
            await transaction.put(Record(kind="heartbeat", id="future", state=CURRENT, doc={"of": "king"}))
        for _ in range(8):
            async with bus.transaction() as transaction:
                for role, machine in (("king", "elsewhere"), ("envoy", socket.gethostname())):
                    sign = Heartbeat(role=role, machine=machine, pid=scene.child(role).pid or 0, at=hours.now)
                    known = await transaction.get("heartbeat", role)
                    record = known or Record(kind="heartbeat", id=role, state=CURRENT)
                    await transaction.put(record.replace(doc=msgspec.to_builtins(sign)))
            await hours.pass_by(silence, 20)
        await scene.until(lambda: scene.child("king").restarts)
        assert scene.child("envoy").restarts == 0


def test_a_realm_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    with (
        hold_realm(tmp_path),
        pytest.raises(Misconfigured, match=rf"already runs .*pid {os.getpid()}"),
        hold_realm(tmp_path),
    ):
        pass
    with hold_realm(tmp_path):
        pass


async def _logged(bus: Bus, kind: str, target: str, name: str) -> list[object]:
    entries = [logged.entry for logged in await operations_of(bus).read_log(LogCursor(), 1000)]
    found: list[object] = [each.data[name] for each in entries if each.type == kind and each.data["target"] == target]
    return sorted(set(found), key=str)
