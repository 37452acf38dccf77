"""One writer at a time, on one host: a lock file that names its holder, and a stopped holder that is not waited for."""

import fcntl
import json
import mmap
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from weakref import WeakSet

import structlog

from kingdom.backends.files.disk import Disk
from kingdom.errors import Misconfigured, Unavailable

# How long a stopped holder is waited for: leases are longer.
STOPPED_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
_FIRST_NAP_SECONDS = 0.0001
_LONGEST_NAP_SECONDS = 0.005
_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PLACES = struct.Struct("<QQ")
_PAGE = 4096
_BOOT_AT, _HOLDER_AT = 64, 128
# Where locks, renames or change notices depend on another machine.
_REMOTE = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "smb2",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "gpfs",
        "ocfs2",
        "gfs2",
        "beegfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "vboxsf",
        "vmhgfs",
        "fuse.vmhgfs-fuse",
        "prl_fs",
        "davfs",
        "fuse.davfs2",
    ]
)
_log = structlog.get_logger(__name__)
_open: "WeakSet[Lock]" = WeakSet()


def _leave_to_parent() -> None:
    """Let go of what a fork has copied: a child that lives on must not keep the lock of a parent that died."""
    for lock in list(_open):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def boot_id() -> str:
    """Return what changes whenever this machine starts anew; empty where that cannot be known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def boot_clock() -> float:
    """Return seconds on a clock that all processes share and nobody sets, asleep or awake."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Busy(Exception):
    """Somebody holds the store, and nobody was to wait."""


class Lock:
    """A lock between processes; its page also says how far the journal has been applied, and in which boot.

    The page is memory that all processes share, so that reading and writing it costs nothing and survives any of them.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open.add(self)
        if os.fstat(self._descriptor).st_size < _PAGE:
            os.ftruncate(self._descriptor, _PAGE)
        self._page = mmap.mmap(self._descriptor, _PAGE)
        self._status = os.fstat(self._descriptor)
        self._holder = f"pid {os.getpid()} on {platform.node()}\n".encode()[: _PAGE - _HOLDER_AT]

    def close(self) -> None:
        """Let go of the file."""
        _open.discard(self)
        self._page.close()
        os.close(self._descriptor)

    @contextmanager
    def held(self, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Hold the lock during the block; raises Busy where it must not `wait` and another process holds it."""
        self._take(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait=wait)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @property
    def places(self) -> tuple[int, int]:
        """Return the start of the newest segment, and up to where the journal has been applied."""
        return _PLACES.unpack_from(self._page, 0)

    @property
    def applied(self) -> int:
        """Return up to where the journal has been applied."""
        return self.places[1]

    @applied.setter
    def applied(self, place: int) -> None:
        self._page[8:16] = place.to_bytes(8, "little")

    @property
    def segment(self) -> int:
        """Return the start of the newest segment."""
        return self.places[0]

    @segment.setter
    def segment(self, start: int) -> None:
        self._page[0:8] = start.to_bytes(8, "little")

    @property
    def synced(self) -> int:
        """Return up to where the journal will survive a loss of power; more of it may."""
        return int.from_bytes(self._page[16:24], "little")

    @synced.setter
    def synced(self, place: int) -> None:
        self._page[16:24] = place.to_bytes(8, "little")

    @property
    def doubtful(self) -> int:
        """Return where the valid part of the newest segment ends if a failed sync demands a new file; else 0."""
        return int.from_bytes(self._page[24:32], "little")

    @doubtful.setter
    def doubtful(self, end: int) -> None:
        self._page[24:32] = end.to_bytes(8, "little")

    @property
    def boot(self) -> str:
        """Return the boot in which the page was written."""
        return self._page[_BOOT_AT:_HOLDER_AT].rstrip(b"\x00").decode("ascii", "replace")

    @boot.setter
    def boot(self, boot: str) -> None:
        self._page[_BOOT_AT:_HOLDER_AT] = boot.encode().ljust(_HOLDER_AT - _BOOT_AT, b"\x00")

    def _take(self, mode: int, *, wait: bool) -> None:
        began, nap, looked = time.monotonic(), _FIRST_NAP_SECONDS, 0.0
        stopped: dict[int, float] = {}
        while not self._try(mode):
            if not wait:
                raise Busy
            waited = time.monotonic() - began
            if waited - looked > _LOOK_EVERY_SECONDS:
                looked = waited
                stopped = {pid: stopped.get(pid, waited) for pid in holders_of(self._status) if is_stopped(pid)}
                self._kill([pid for pid, since in stopped.items() if waited - since > STOPPED_SECONDS])
            if waited > _PATIENCE_SECONDS:
                holder = self._page[_HOLDER_AT:].partition(b"\n")[0].decode("utf-8", "replace")
                raise Unavailable(f"the store is locked for {waited:.0f} s, last by {holder}: look what it does")
            time.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP_SECONDS)
        if not self._is_ours():
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise Unavailable("the store was moved or removed while this process had it open: start it again")
        if mode == fcntl.LOCK_EX:
            self._page[_HOLDER_AT : _HOLDER_AT + len(self._holder)] = self._holder

    def _is_ours(self) -> bool:
        """Tell whether the name still leads to the file that is locked: two locks would mean two writers."""
        try:
            return os.path.samestat(os.stat(self._path), self._status)
        except FileNotFoundError:
            return False

    def _try(self, mode: int) -> bool:
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _kill(self, stopped: list[int]) -> None:
        """Kill who holds the lock and is stopped for long: what it has begun is replayed from the journal."""
        for pid in stopped:
            _log.warning("the holder of the lock is stopped and gets killed; its work is replayed", pid=pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def holders_of(lock: os.stat_result) -> list[int]:
    """Return the processes that hold the lock of a file, but for this one; nobody where that cannot be known."""
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # "1: FLOCK ADVISORY WRITE 4711 fd:01:131074 0 EOF"; a waiting one has an arrow in its second field.
        pids = {int(w[4]) for w in lines if w[1] == "FLOCK" and w[5].rpartition(":")[2] == str(lock.st_ino)}
        return [pid for pid in pids if pid > 0 and pid != os.getpid() and _has_open(pid, lock)]
    return []


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Tell whether a process has this very file open: another filesystem may have one of the same number."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    return True
    return False


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal or by who debugs it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False


def own_process() -> str:
    """Return what names this process among all of one boot; empty where that cannot be known."""
    return _named(os.getpid())


@cache
def _named(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}:{_started(pid)}:{os.readlink('/proc/self/ns/pid')}"
    return ""


def has_ended(process: str) -> bool:
    """Tell whether a process is gone for sure; one of another namespace cannot be seen."""
    pid, _, rest = process.partition(":")
    started, _, namespace = rest.partition(":")
    try:
        if not pid or os.readlink("/proc/self/ns/pid") != namespace:
            return False
        return _started(int(pid)) != started
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _started(pid: int) -> str:
    """Return when a process has started, or nothing where it has ended and only its parent does not know yet."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]


def refuse_remote(root: str) -> None:
    """Refuse a directory whose filesystem is shared with other machines."""
    kind = _filesystem(os.path.realpath(root))
    if kind in _REMOTE:
        raise Misconfigured(
            f"{root} lies on a {kind} filesystem, where locks and renames depend on another machine:"
            " choose a local directory, or PostgreSQL for several hosts"
        )


def refuse_other_host(path: str, disk: Disk) -> None:
    """Refuse a store that belongs to another machine; the first one to hold it writes its name down."""
    own = {"machine": _machine_id(), "name": platform.node()}
    # An empty one is what a loss of power leaves of a file that was just made.
    if not os.path.exists(path) or not os.path.getsize(path):
        disk.create(f"{path}.new", json.dumps(own).encode() + b"\n")
        disk.rename(f"{path}.new", path)
        return
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except ValueError:
        found = {}
    if found.get("machine") != own["machine"]:
        raise Misconfigured(
            f"this store belongs to the host {found.get('name', 'of an unreadable name')}, this one is {own['name']}:"
            f" one host at a time. If it has moved here for good and nothing runs there any more, remove {path}"
        )


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            if text := Path(path).read_text().strip():
                return text
    return platform.node()


def _filesystem(path: str) -> str:
    """Return the type of the filesystem that a path lies on; empty where that cannot be known."""
    best, kind = "", ""
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            mount = before.split()[4].replace("\\040", " ")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, after.split()[0]
    return kind
