"""The lock of a store of files: one writer at a time, no long wait for a stopped one, and no blocked event loop."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kingdom.backends.files import FilesBus, FilesOperations, store
from kingdom.backends.files import bus as files_bus
from kingdom.backends.files.system import lock as files_lock
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.lock import StoreLock
from kingdom.backends.files.system.processes import holders_of
from kingdom.backends.files.system.processes import is_stopped as files_lock_is_stopped
from kingdom.backends.files.tree import log
from kingdom.backends.files.tree.json_lines import lines_from
from kingdom.backends.files.tree.tree import FileTree
from kingdom.bus import LogCursor
from tests.integration.test_files_store import FullDisk, append, drain, opened, ping
from tests.patience import PATIENCE_SECONDS

# More checks than a process makes before it kills a stopped holder.
MANY_LOOKS = 5
HOLD_UNTIL_INPUT = """
import fcntl, sys
with open(sys.argv[1], "rb+") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[StoreLock]:
    lock = StoreLock(str(tmp_path / "lock"))
    yield lock
    lock.close()


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLD_UNTIL_INPUT, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_stopped_holder_is_killed_and_the_lock_taken(
    lock: StoreLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[bool]()

    def is_stopped(pid: int) -> bool:
        looks.append(files_lock_is_stopped(pid))
        return looks[-1]

    monkeypatch.setattr(files_lock, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(files_lock, "is_stopped", is_stopped)
    with holder(tmp_path / "lock") as process:
        process.send_signal(signal.SIGSTOP)
        with lock.held():
            # One check is not enough, because the holder may have stopped only a moment before.
            assert looks.count(True) > 1
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_holder_that_was_stopped_for_a_moment_is_not_killed_however_long_others_waited(
    lock: StoreLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_lock, "STOPPED_SECONDS", 0.2)
    with holder(tmp_path / "lock") as process:
        let_go, looks = process.stdin, itertools.count()
        assert let_go is not None

        def is_stopped(_pid: int) -> bool:
            """Report a stop at one check only, after a longer wait."""
            if let_go.closed or next(looks) < MANY_LOOKS:
                return False
            let_go.close()
            return True

        monkeypatch.setattr(files_lock, "is_stopped", is_stopped)
        with lock.held():
            assert let_go.closed
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_process_that_locks_the_same_inode_number_on_another_filesystem_is_not_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with holder(path) as process:
        mode, number, device, *rest = path.stat()
        assert holders_of(path.stat()) == [process.pid]
        assert holders_of(os.stat_result((mode, number, device + 1, *rest))) == []


class WatchedDisk(Disk):
    """Records the disk operations that block the thread of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[str] = []
        scan = FileTree.scan_events

        def noted_scan(tree: FileTree, *which: Any) -> Any:
            self.note("scan of a stream")
            return scan(tree, *which)

        monkeypatch.setattr(FileTree, "scan_events", noted_scan)

    def note(self, what: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.waits.append(what)

    def sync_file(self, descriptor: int) -> None:
        self.note("sync of a file")
        super().sync_file(descriptor)

    def sync_directory(self, path: str) -> None:
        self.note("sync of a directory")
        super().sync_directory(path)


async def fill_the_segment(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SEGMENT_BYTES", 1)


async def commit_without_writing_the_files(realm: Path, _: pytest.MonkeyPatch) -> None:
    disk = FullDisk("create")
    async with opened(realm, disk) as other:
        disk.full = True
        await other.publish(ping(3))


async def start_a_new_segment(realm: Path, _: pytest.MonkeyPatch) -> None:
    async with opened(realm) as other:
        await other.run_in_thread(other.store.checkpoint)


async def remove_an_event(realm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_bus, "_MISSING_SECONDS", -1.0)
    min((realm / "bus/streams/free/pending").iterdir()).unlink()


async def damage_an_event(realm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_bus, "_DAMAGED_SECONDS", -1.0)
    min((realm / "bus/streams/free/pending").iterdir()).write_text("{")


@pytest.mark.parametrize(
    "happen",
    [fill_the_segment, commit_without_writing_the_files, start_a_new_segment, remove_an_event, damage_an_event],
)
async def test_a_claim_never_blocks_the_event_loop_with_disk_access(
    realm: Path, monkeypatch: pytest.MonkeyPatch, happen: Callable[[Path, pytest.MonkeyPatch], Awaitable[None]]
) -> None:
    disk = WatchedDisk(monkeypatch)
    async with opened(realm, disk) as bus:
        await bus.publish(*map(ping, range(3)))
        await bus.claim("free", 1, "worker")
        await happen(realm, monkeypatch)
        assert await bus.claim("free", 3, "worker")
        await bus.publish(ping(4))
        assert disk.waits == []
        assert await drain(bus) == [4]


async def test_an_event_that_was_repaired_is_claimed_without_blocking_the_event_loop(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2))
    second = max((realm / "bus/streams/free/pending").iterdir())
    whole = second.read_text()
    second.write_text("{")
    disk = WatchedDisk(monkeypatch)
    async with opened(realm, disk) as bus:
        await bus.claim("free", 1, "worker")
        second.write_text(whole)
        assert await drain(bus) == [2]
        assert disk.waits == []


async def test_reading_the_whole_archive_or_log_does_not_block_other_work(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every entry starts a new file.
    monkeypatch.setattr(log, "LOG_BYTES", 1)
    event, loop = ping(1), asyncio.get_running_loop()

    async def work(bus: FilesBus) -> None:
        await bus.publish(event)
        assert await drain(bus) == [1]
        await append(bus, "worked")

    def meanwhile(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*what: Any) -> Any:
            for each in (bus, other):
                asyncio.run_coroutine_threadsafe(work(each), loop).result(PATIENCE_SECONDS)
            return read(*what)

        return reading

    async with opened(realm) as bus, opened(realm) as other:
        operations = FilesOperations(bus)
        await work(bus)
        with monkeypatch.context() as patched:
            patched.setattr(FileTree, "read_archive", meanwhile(FileTree.read_archive))
            patched.setattr(log, "lines_from", meanwhile(lines_from))
            (situation,) = await operations.situations(event.event_id)
            found = await operations.read_log(LogCursor(), 100)
        rest = await operations.read_log(found[-1].cursor, 100)
        assert [*found, *rest] == await operations.read_log(LogCursor(), 100)
    assert situation.status == "DONE"
    assert (len(found), len(rest)) == (3, 6)
