"""A store of files: its directory, its file system, its space, and who holds it."""

import errno
import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from kingdom.bootstrap import inspect_files
from kingdom.doctor.check import Status, Verdict, fail, in_thread, ok, skipped, warn
from kingdom.doctor.patient import Patient

_PROBE = ".kingdom-doctor-"
_SYNCS = 5
_SLOW_SYNC_SECONDS = 0.1
_NO_DATABASE = "the store is a database"
_FREE_INODES_LEAST = 10_000


async def directory(patient: Patient) -> Verdict:
    """Look whether the directory of the realm, and that of soldiers if it is another, can be written or made."""
    soldiers = patient.realm.soldiers.directory
    places = [patient.directory, *([Path(soldiers)] if soldiers else [])]
    return await patient.once("directory", lambda: in_thread(lambda: _directories(places)))


async def file_system(patient: Patient) -> Verdict:
    """Look whether files can be synced, renamed and locked where the store is."""
    store = patient.store
    if store is None:
        return skipped(_NO_DATABASE)
    if (await directory(patient)).status is Status.FAIL:
        return skipped("the directory cannot be written")
    return await in_thread(lambda: _file_system(_existing(store)))


async def disk(patient: Patient) -> Verdict:
    """Look how full the disk is, by the thresholds of the Chamberlain."""
    health = patient.realm.chamberlain.health
    place, space = await in_thread(lambda: _space(patient.directory))
    used, free = space.f_blocks - space.f_bfree, space.f_bavail
    percent = 100 * used / (used + free) if used + free else 0.0
    words = f"{percent:.0f} % used, {free * space.f_frsize / (1 << 30):.1f} GiB free"
    fix = f"free some space: du -xh --max-depth 2 {place.absolute()} | sort -h | tail"
    if percent >= health.disk_orange:
        return fail(f"{words}: nothing new begins", fix)
    if space.f_files and space.f_favail < _FREE_INODES_LEAST:
        return warn(f"only {space.f_favail} files more can be made", fix)
    return warn(words, fix) if percent >= health.disk_yellow else ok(words)


async def lock(patient: Patient) -> Verdict:
    """Look who holds the store, if anybody does for longer than a write takes."""
    if patient.store is None:
        return skipped(_NO_DATABASE)
    look = await patient.once("files", lambda: in_thread(lambda: inspect_files(patient.settings.database_url)))
    return ok("nobody holds the store for long") if look.holders is None else _held(look.holders)


async def leases(patient: Patient) -> Verdict:
    """Look for work in the hands of processes that have ended."""
    if patient.store is None:
        return skipped(_NO_DATABASE)
    look = await patient.once("files", lambda: in_thread(lambda: inspect_files(patient.settings.database_url)))
    if not look.orphans:
        return ok("nothing is in the hands of a process that has ended")
    words = "{} of them, such as {} by process {}".format(len(look.orphans), *look.orphans[0])
    return warn(f"work is in the hands of processes that have ended: {words}", "kingdom up, which gives it to others")


async def event_files(patient: Patient) -> Verdict:
    """Look for files of open events that cannot be read: such an event waits until its file can be."""
    if patient.store is None:
        return skipped(_NO_DATABASE)
    look = await patient.once("files", lambda: in_thread(lambda: inspect_files(patient.settings.database_url)))
    if not look.unreadable:
        return ok("the files of open events can be read")
    path, reason = look.unreadable[0]
    more = f", and {len(look.unreadable) - 1} more" if len(look.unreadable) > 1 else ""
    fix = f"sudo chown $USER {path}" if reason == os.strerror(errno.EACCES) else f"bring {path} back from a backup"
    return fail(f"an event waits since its file cannot be read: {path} ({reason}){more}", fix)


def _space(place: Path) -> tuple[Path, os.statvfs_result]:
    there = _existing(place)
    return there, os.statvfs(there)


def _directories(places: list[Path]) -> Verdict:
    verdicts = [_directory(place) for place in places]
    return next((verdict for verdict in verdicts if verdict.status is Status.FAIL), verdicts[0])


def _directory(place: Path) -> Verdict:
    shown, there = place.absolute(), _existing(place)
    if not there.is_dir():
        return fail(f"{there.absolute()} is no directory", f"mv {there.absolute()} {there.absolute()}.old")
    try:
        with _probe(there):
            pass
    except OSError as error:
        owner = f"sudo chown -R $USER {there.absolute()}" if error.errno in (errno.EACCES, errno.EPERM) else ""
        fix = owner or f"make {there.absolute()} writable, or name another directory as database_url"
        return fail(f"{there.absolute()} cannot be written: {error.strerror}", fix)
    return ok(f"{shown} can be written" if place.exists() else f"{shown} is not there yet, and can be made")


def _existing(place: Path) -> Path:
    """Return a path, or what there is above it."""
    place = place.absolute()
    return next((each for each in (place, *place.parents) if each.exists()), Path("/"))


@contextmanager
def _probe(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=_PROBE, dir=place) as room:
        yield Path(room)


def _file_system(place: Path) -> Verdict:
    another = "choose a directory on a local disk as database_url, or use PostgreSQL"
    with _probe(place) as room:
        try:
            seconds = statistics.median(_sync(room / "synced") for _ in range(_SYNCS))
            (room / "new").write_text("new")
            (room / "new").replace(room / "synced")
            if (room / "synced").read_text() != "new" or (room / "new").exists():
                return fail("a rename does not put one file in the place of another", another)
            if not _locks(room / "lock"):
                return fail("two processes could lock the same file", another)
        except OSError as error:
            return fail(f"it cannot do what a store needs: {error.strerror}", another)
    words = f"syncs in {seconds * 1000:.1f} ms, renames and locks"
    if seconds > _SLOW_SYNC_SECONDS:
        return warn(f"{words}; each transaction waits for a sync", "choose a faster disk, or let others use it less")
    return ok(words)


def _sync(file: Path) -> float:
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


def _locks(file: Path) -> bool:
    """Tell whether a lock of one keeps another out."""
    with file.open("w") as first, file.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _held(holders: list[int]) -> Verdict:
    seconds = "the store is locked for more than two seconds"
    for pid in holders:
        with suppress(psutil.Error):
            holder = psutil.Process(pid)
            words = f"{seconds} by process {pid} ({' '.join(holder.cmdline()[:6])})"
            if holder.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                fix = f"kill -CONT {pid}, or kill -KILL {pid}: what it has begun is replayed"
                return fail(f"{words}, which is stopped", fix)
            return fail(words, f"see what it does, and end it: kill {pid}")
    return fail(f"{seconds}, and nobody can be seen to hold it", "end whatever runs on this realm in a container")
