"""Heartbeats: a busy role writes them, a dead role does not, and an ended role is not reported as silent."""

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kingdom.court.heartbeat import (
    HEARTBEATS,
    FileHeartbeatWriter,
    HeartbeatThread,
    HeartbeatWriter,
    RecordHeartbeatWriter,
    forget_old_heartbeats,
    heartbeats_in_files,
    heartbeats_in_records,
    last_heartbeats,
)
from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.scene import START, ChamberlainScene
from tests.patience import PATIENCE_SECONDS

OFTEN = timedelta(seconds=0.05)
DAY = timedelta(days=1)


def heartbeat_time(directory: Path) -> float:
    path = directory / "state" / "king" / "heartbeat"
    return path.stat().st_mtime if path.exists() else 0.0


def until(ready: Callable[[], bool]) -> None:
    """Wait for a condition, and block the event loop meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


def stays_silent(directory: Path) -> bool:
    """Return whether no heartbeat follows for many times the usual interval."""
    last = heartbeat_time(directory)
    time.sleep(OFTEN.total_seconds() * 10)
    return heartbeat_time(directory) == last


@contextmanager
def beating(directory: Path, how: str, stuck_after: float = 600) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.court.chamberlain.beating_child", str(directory), how]
    with subprocess.Popen([*command, str(stuck_after)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_role_with_a_blocked_event_loop_keeps_writing_heartbeats(tmp_path: Path) -> None:
    with beating(tmp_path, "hangs"):
        first = heartbeat_time(tmp_path)
        until(lambda: heartbeat_time(tmp_path) > first + 0.5)


def test_a_role_whose_event_loop_hangs_for_too_long_stops_writing_heartbeats(tmp_path: Path) -> None:
    with beating(tmp_path, "hangs", stuck_after=0.2):
        until(lambda: heartbeat_time(tmp_path) > 0)
        until(lambda: stays_silent(tmp_path))


def test_a_killed_role_writes_no_more_heartbeats_and_its_last_one_stays(tmp_path: Path) -> None:
    with beating(tmp_path, "works") as process:
        until(lambda: heartbeat_time(tmp_path) > 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
    # No process is left to write another heartbeat.
    assert heartbeat_time(tmp_path) > 0


def test_a_stopped_role_writes_no_heartbeat(tmp_path: Path) -> None:
    with beating(tmp_path, "works") as process:
        until(lambda: heartbeat_time(tmp_path) > 0)
        process.send_signal(signal.SIGSTOP)
        until(lambda: stays_silent(tmp_path))


async def test_a_role_that_ends_removes_its_heartbeat(tmp_path: Path) -> None:
    async with HeartbeatThread(heartbeats_in_files(tmp_path, "king"), every=OFTEN):
        until(lambda: heartbeat_time(tmp_path) > 0)
    assert heartbeat_time(tmp_path) == 0


class RecordingWriter(HeartbeatWriter):
    """A heartbeat writer that also records heartbeats here, for a test that cannot read the store."""

    def __init__(self, signs: HeartbeatWriter, given: list[datetime]) -> None:
        self._signs = signs
        self._given = given

    async def beat(self, at: datetime) -> None:
        await self._signs.beat(at)
        self._given.append(at)

    async def end(self) -> None:
        await self._signs.end()


@pytest.mark.both_stores
async def test_heartbeats_are_written_as_records_while_the_event_loop_is_busy(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    given: list[datetime] = []
    in_records = heartbeats_in_records(lambda: backend.open(scene.bus.topology, [HEARTBEATS]), "king")

    @asynccontextmanager
    async def noted() -> AsyncIterator[HeartbeatWriter]:
        async with in_records() as signs:
            yield RecordingWriter(signs, given)

    async with HeartbeatThread(noted, every=OFTEN):
        # This keeps the event loop busy.
        until(lambda: len(given) > 3)
        async with scene.bus.transaction() as transaction:
            assert (await last_heartbeats(transaction, None))["king"] >= given[3]
    async with scene.bus.transaction() as transaction:
        assert await last_heartbeats(transaction, None) == {}


async def test_the_latest_heartbeat_of_a_role_counts(scene: ChamberlainScene) -> None:
    early, late = RecordHeartbeatWriter(scene.bus, "king"), RecordHeartbeatWriter(scene.bus, "king")
    await late.beat(START + timedelta(minutes=1))
    await early.beat(START)
    await FileHeartbeatWriter(scene.directory, "gen-pr").beat(START)
    async with scene.bus.transaction() as transaction:
        signs = await last_heartbeats(transaction, scene.directory)
    assert signs == {"king": START + timedelta(minutes=1), "gen-pr": START}


async def test_the_heartbeat_of_a_dead_process_ends_once_its_role_has_a_newer_one(scene: ChamberlainScene) -> None:
    old, alone = RecordHeartbeatWriter(scene.bus, "king"), RecordHeartbeatWriter(scene.bus, "envoy")
    await old.beat(START)
    await alone.beat(START)
    await RecordHeartbeatWriter(scene.bus, "king").beat(START + DAY)
    async with scene.bus.transaction() as transaction:
        await forget_old_heartbeats(transaction, START + DAY)
    assert len(await scene.ids(HEARTBEATS.name)) == 3
    async with scene.bus.transaction() as transaction:
        await forget_old_heartbeats(transaction, START + DAY + timedelta(seconds=1))
        assert await last_heartbeats(transaction, None) == {"king": START + DAY, "envoy": START}
    async with scene.bus.transaction() as transaction:
        states = [(await transaction.get(HEARTBEATS.name, each)) for each in await scene.ids(HEARTBEATS.name)]
    assert sorted(record.state for record in states if record) == ["current", "current", "ended"]


@pytest.mark.both_stores
async def test_a_general_without_a_process_is_reported_and_a_removed_one_is_not(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    members = {"gen-pr": True, "gen-broken": True, "gen-removed": True}
    if backend.name == "files":
        signs = heartbeats_in_files(scene.directory, "general", lambda: members)
    else:
        signs = heartbeats_in_records(
            lambda: backend.open(scene.bus.topology, [HEARTBEATS]), "general", lambda: members
        )
    chamberlain = scene.chamberlain()

    async def beat(writer: HeartbeatWriter) -> None:
        await writer.beat(scene.now)
        await chamberlain.run_round()
        scene.forward(seconds=30)

    async with signs() as writer:
        await beat(writer)
        async with scene.bus.transaction() as transaction:
            assert set(await last_heartbeats(transaction, scene.directory)) == {"general", *members}
        members["gen-broken"] = False
        del members["gen-removed"]
        for _ in range(6):
            await beat(writer)
        (missed,) = await scene.logged("system.heartbeat_missed")
        assert missed == {"target": "gen-broken", "last_seen": "2026-02-07T01:00:00Z", "threshold_seconds": 120}
        await writer.end()
    async with scene.bus.transaction() as transaction:
        assert set(await last_heartbeats(transaction, scene.directory)) == set()
