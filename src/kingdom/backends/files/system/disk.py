"""All writes to the disk. Each operation is one method, so that a test can interrupt it or undo its writes."""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Most files are smaller than this, so one read is enough.
_BLOCK = 1 << 16
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Disk:
    """The disk operations of a store. Only the `sync_…` methods make changes survive a power loss."""

    def create(self, path: str, data: bytes) -> None:
        """Write a whole file. The caller renames it before other processes read it."""
        descriptor = os.open(path, _WRITE_NEW, _FILE_MODE)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing the target."""
        os.rename(old, new)

    def unlink(self, path: str) -> bool:
        """Remove a file; return False if it did not exist."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, creating it if needed."""
        descriptor = os.open(path, _APPEND, _FILE_MODE)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def overwrite(self, path: str, changes: Mapping[int, bytes]) -> None:
        """Overwrite bytes of a file at the given offsets. Each change stays within one page."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in changes.items():
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file off at `size` bytes."""
        os.truncate(path, size)

    def stamp(self, path: str, seconds: float, content: bytes) -> None:
        """Create a small file with this modification time."""
        self.create(path, content)
        os.utime(path, (seconds, seconds))

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, accessible to the owner only."""
        with suppress(FileExistsError):
            try:
                os.mkdir(path, _DIRECTORY_MODE)
            except FileNotFoundError:
                parent = os.path.dirname(path)
                if os.path.lexists(parent):
                    # The parent is a dangling link, or nothing can be created in it.
                    raise
                self.make_directory(parent)
                self.make_directory(path)

    def sync_file(self, descriptor: int) -> None:
        """Wait until everything written to an open file survives a power loss."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Wait until the names in a directory survive a power loss."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_everything(self, root: str) -> None:
        """Wait until all changes so far on the filesystem of `root` survive a power loss."""
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), root)
        except AttributeError:
            os.sync()
        finally:
            os.close(descriptor)

    def open_for_appending(self, path: str) -> int:
        """Open a file for repeated appends."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)

    def write(self, descriptor: int, data: bytes) -> None:
        """Append to an open file."""
        _write_all(descriptor, data)


_libc = ctypes.CDLL(None, use_errno=True)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    # A write can be partial because of a signal or a full disk. On a full disk, the next write fails.
    while written < len(data):
        written += os.write(descriptor, data[written:])


def read_file(path: str) -> bytes:
    """Return the content of a plain file, without following a link or waiting for a pipe."""
    descriptor = os.open(path, _READ)
    try:
        content = os.read(descriptor, _BLOCK)
        if len(content) < _BLOCK:
            return content
        parts, rest = [content], os.fstat(descriptor).st_size
        while part := os.read(descriptor, max(rest, _BLOCK)):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
