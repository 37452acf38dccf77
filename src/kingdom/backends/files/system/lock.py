"""The lock of a store, which allows one writer at a time. If a signal stops its holder, the holder is killed."""

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

# How long to wait for a stopped holder of the lock before killing it. A lease must be longer to outlive this wait.
STOPPED_SECONDS = 2.0
_CHECK_EVERY_SECONDS = 0.1
# How long to wait for the lock before giving up.
_PATIENCE_SECONDS = 30.0
_FIRST_SLEEP_SECONDS = 0.0001
_LONGEST_SLEEP_SECONDS = 0.005
# The layout of the lock page: its size, its first two numbers, and where the boot id and the last holder are.
_PAGE = 4096
_OFFSETS = struct.Struct("<QQ")
_BOOT_AT, _HOLDER_AT = 64, 128
_log = structlog.get_logger(__name__)
_open: "WeakSet[StoreLock]" = WeakSet()


def _close_in_child() -> None:
    """Close all locks in a forked child. Otherwise the child would keep the lock after its parent has died."""
    for lock in list(_open):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


class StoreBusy(Exception):
    """Another thread or process holds the store, and the caller must not wait."""


class StoreLock:
    """A lock between processes. The page in its file also stores offsets of the journal and the boot id.

    All processes map the page into memory, so access is fast, and the content remains when a process dies.
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
        """Close the lock file."""
        _open.discard(self)
        self._page.close()
        os.close(self._descriptor)

    @contextmanager
    def held(self, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Hold the lock during the block. If `wait` is false and another process holds it, raise StoreBusy."""
        self._take(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait=wait)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @property
    def offsets(self) -> tuple[int, int]:
        """Return the start of the newest segment, and the offset up to which the journal has been applied."""
        return _OFFSETS.unpack_from(self._page, 0)

    @property
    def applied(self) -> int:
        """Return the offset up to which the journal has been applied to the files."""
        return self.offsets[1]

    @applied.setter
    def applied(self, offset: int) -> None:
        self._page[8:16] = offset.to_bytes(8, "little")

    @property
    def segment(self) -> int:
        """Return the start offset of the newest segment."""
        return self.offsets[0]

    @segment.setter
    def segment(self, start: int) -> None:
        self._page[0:8] = start.to_bytes(8, "little")

    @property
    def synced(self) -> int:
        """Return the offset up to which the journal is known to survive a power loss."""
        return int.from_bytes(self._page[16:24], "little")

    @synced.setter
    def synced(self, offset: int) -> None:
        self._page[16:24] = offset.to_bytes(8, "little")

    @property
    def rewrite_up_to(self) -> int:
        """Return the offset up to which the newest segment must be copied to a new file after a failed sync; else 0."""
        return int.from_bytes(self._page[24:32], "little")

    @rewrite_up_to.setter
    def rewrite_up_to(self, end: int) -> None:
        self._page[24:32] = end.to_bytes(8, "little")

    @property
    def boot(self) -> str:
        """Return the id of the boot in which the page was written."""
        return self._page[_BOOT_AT:_HOLDER_AT].rstrip(b"\x00").decode("ascii", "replace")

    @boot.setter
    def boot(self, boot: str) -> None:
        self._page[_BOOT_AT:_HOLDER_AT] = boot.encode().ljust(_HOLDER_AT - _BOOT_AT, b"\x00")

    def _take(self, mode: int, *, wait: bool) -> None:
        began, sleep, checked = time.monotonic(), _FIRST_SLEEP_SECONDS, 0.0
        stopped: dict[int, float] = {}
        while not self._try(mode):
            if not wait:
                raise StoreBusy
            waited = time.monotonic() - began
            if waited - checked > _CHECK_EVERY_SECONDS:
                checked = waited
                stopped = {pid: stopped.get(pid, waited) for pid in holders_of(self._status) if is_stopped(pid)}
                self._kill([pid for pid, since in stopped.items() if waited - since > STOPPED_SECONDS])
            if waited > _PATIENCE_SECONDS:
                holder = self._page[_HOLDER_AT:].partition(b"\n")[0].decode("utf-8", "replace")
                raise Unavailable(f"the store has been locked for {waited:.0f} s, last by {holder}: check that process")
            time.sleep(sleep)
            sleep = min(sleep * 2, _LONGEST_SLEEP_SECONDS)
        if not self._is_same_file():
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise Unavailable("the store was moved or removed while this process had it open: restart this process")
        if mode == fcntl.LOCK_EX:
            self._page[_HOLDER_AT : _HOLDER_AT + len(self._holder)] = self._holder

    def _is_same_file(self) -> bool:
        """Return whether the path still leads to the locked file. Two lock files would allow two writers."""
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
        """Kill the stopped holders of the lock. The journal replays their unfinished work."""
        for pid in stopped:
            _log.warning("killing a stopped process that holds the lock; its work is replayed", pid=pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
