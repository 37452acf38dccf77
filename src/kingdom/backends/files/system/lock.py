"""One writer at a time, on one host: a lock file that names its holder, and a stopped holder that is not waited for."""

import fcntl
import mmap
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

import structlog

from kingdom.backends.files.system.processes import holders_of, is_stopped
from kingdom.errors import Unavailable

# How long a stopped holder is waited for: leases are longer.
STOPPED_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
_FIRST_NAP_SECONDS = 0.0001
_LONGEST_NAP_SECONDS = 0.005
_PLACES = struct.Struct("<QQ")
_PAGE = 4096
_BOOT_AT, _HOLDER_AT = 64, 128
_log = structlog.get_logger(__name__)
_open: "WeakSet[Lock]" = WeakSet()


def _leave_to_parent() -> None:
    """Let go of what a fork has copied: a child that lives on must not keep the lock of a parent that died."""
    for lock in list(_open):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


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
