"""Check a file store: its directory, its file system, its free space and its lock."""

import errno
import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from kingdom.bootstrap import inspect_files
from kingdom.doctor.check import CheckResult, Status, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext

_PROBE_PREFIX = ".kingdom-doctor-"
_SYNCS_TIMED = 5
_SLOW_SYNC_SECONDS = 0.1
_IS_DATABASE = "the store is a database"
_FREE_INODES_LEAST = 10_000


async def check_directory(context: CheckContext) -> CheckResult:
    """Check whether the directories of the realm and of the soldiers can be written or created."""
    soldiers = context.realm.soldiers.directory
    # Beside a database, the place of this directory is no setting.
    directories = {"database_url" if context.store_directory else "": context.data_directory}
    if soldiers:
        directories["soldiers.directory"] = Path(soldiers)
    return await context.compute_once("directory", lambda: run_in_thread(lambda: _check_directories(directories)))


async def check_file_system(context: CheckContext) -> CheckResult:
    """Check whether the file system of the store can sync, rename and lock files."""
    store = context.store_directory
    if store is None:
        return skipped(_IS_DATABASE)
    if (await check_directory(context)).status is Status.FAIL:
        return skipped("the directory cannot be written")
    return await run_in_thread(lambda: _check_file_system(_nearest_existing(store)))


async def check_disk(context: CheckContext) -> CheckResult:
    """Check how full the disk is, by the thresholds of the Chamberlain."""
    health = context.realm.chamberlain.health
    directory, space = await run_in_thread(lambda: _read_space(context.data_directory))
    used, free = space.f_blocks - space.f_bfree, space.f_bavail
    percent = 100 * used / (used + free) if used + free else 0.0
    summary = f"{percent:.0f} % used, {free * space.f_frsize / (1 << 30):.1f} GiB free"
    fix = f"free some space: du -xh --max-depth 2 {directory.absolute()} | sort -h | tail"
    if percent >= health.disk_orange:
        return fail(f"{summary}: no new work starts", fix)
    if space.f_files and space.f_favail < _FREE_INODES_LEAST:
        return warn(f"only {space.f_favail} more files can be created", fix)
    return warn(summary, fix) if percent >= health.disk_yellow else ok(summary)


async def check_lock(context: CheckContext) -> CheckResult:
    """Check whether a process has held the lock of the store for longer than a write takes."""
    if context.store_directory is None:
        return skipped(_IS_DATABASE)
    files = await context.compute_once(
        "files", lambda: run_in_thread(lambda: inspect_files(context.settings.database_url))
    )
    return ok("no process holds the lock for long") if files.holders is None else _describe_holders(files.holders)


async def check_leases(context: CheckContext) -> CheckResult:
    """Check for leases of processes that have ended."""
    if context.store_directory is None:
        return skipped(_IS_DATABASE)
    files = await context.compute_once(
        "files", lambda: run_in_thread(lambda: inspect_files(context.settings.database_url))
    )
    if not files.orphans:
        return ok("no lease belongs to a process that has ended")
    stream, pid = files.orphans[0]
    example = f"one on the stream {stream} of process {pid}"
    found = f"{len(files.orphans)} lease(s) belong to processes that have ended, such as {example}"
    return warn(found, "kingdom up, which frees them")


async def check_event_files(context: CheckContext) -> CheckResult:
    """Check for unreadable files of open events. The event of such a file waits until the file is readable."""
    if context.store_directory is None:
        return skipped(_IS_DATABASE)
    files = await context.compute_once(
        "files", lambda: run_in_thread(lambda: inspect_files(context.settings.database_url))
    )
    if not files.unreadable:
        return ok("the files of all open events can be read")
    path, reason = files.unreadable[0]
    more = f", and {len(files.unreadable) - 1} more" if len(files.unreadable) > 1 else ""
    fix = f"sudo chown $USER {path}" if reason == os.strerror(errno.EACCES) else f"restore {path} from a backup"
    return fail(f"an event waits because its file cannot be read: {path} ({reason}){more}", fix)


def _read_space(directory: Path) -> tuple[Path, os.statvfs_result]:
    existing = _nearest_existing(directory)
    return existing, os.statvfs(existing)


def _check_directories(directories: Mapping[str, Path]) -> CheckResult:
    results = [_check_writable(setting, directory) for setting, directory in directories.items()]
    return next((result for result in results if result.status is Status.FAIL), results[0])


def _check_writable(setting: str, directory: Path) -> CheckResult:
    shown, existing = directory.absolute(), _nearest_existing(directory)
    if not existing.is_dir():
        return fail(f"{existing.absolute()} is not a directory", f"mv {existing.absolute()} {existing.absolute()}.old")
    try:
        with _probe_directory(existing):
            pass
    except OSError as error:
        owner = f"sudo chown -R $USER {existing.absolute()}" if error.errno in (errno.EACCES, errno.EPERM) else ""
        another = f", or name another directory as {setting}" if setting else ""
        fix = owner or f"make {existing.absolute()} writable{another}"
        return fail(f"{existing.absolute()} cannot be written: {error.strerror}", fix)
    return ok(f"{shown} can be written" if directory.exists() else f"{shown} does not exist yet and can be created")


def _nearest_existing(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    path = path.absolute()
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


@contextmanager
def _probe_directory(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=_PROBE_PREFIX, dir=parent) as probe:
        yield Path(probe)


def _check_file_system(directory: Path) -> CheckResult:
    another = "choose a directory on a local disk as database_url, or use PostgreSQL"
    with _probe_directory(directory) as probe:
        try:
            seconds = statistics.median(_time_sync(probe / "synced") for _ in range(_SYNCS_TIMED))
            (probe / "new").write_text("new")
            (probe / "new").replace(probe / "synced")
            if (probe / "synced").read_text() != "new" or (probe / "new").exists():
                return fail("a rename does not replace an existing file", another)
            if not _locks_exclude(probe / "lock"):
                return fail("two processes can lock the same file", another)
        except OSError as error:
            return fail(f"the file system lacks what a store needs: {error.strerror}", another)
    summary = f"syncs in {seconds * 1000:.1f} ms, renames and locks"
    if seconds > _SLOW_SYNC_SECONDS:
        return warn(f"{summary}; each transaction waits for a sync", "choose a faster or less busy disk")
    return ok(summary)


def _time_sync(file: Path) -> float:
    """Append to a file, sync the file and its directory, and return how many seconds that took."""
    began = time.monotonic()
    with file.open("ab") as written:
        written.write(b"x" * 512)
        written.flush()
        os.fdatasync(written.fileno())
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return time.monotonic() - began


def _locks_exclude(file: Path) -> bool:
    """Return whether one lock on a file excludes a second one."""
    with file.open("w") as first, file.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _describe_holders(holders: list[int]) -> CheckResult:
    locked = "the store has been locked for more than two seconds"
    for pid in holders:
        with suppress(psutil.Error):
            holder = psutil.Process(pid)
            summary = f"{locked} by process {pid} ({' '.join(holder.cmdline()[:6])})"
            if holder.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                fix = f"kill -CONT {pid}, or kill -KILL {pid}: its unfinished transaction is replayed"
                return fail(f"{summary}, which is stopped", fix)
            return fail(summary, f"find out what it does, and end it: kill {pid}")
    return fail(f"{locked} by a process that is not visible here", "end the containers that use this realm")
