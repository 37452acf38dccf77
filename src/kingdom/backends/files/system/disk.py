"""Every change to the disk goes through here, one method an operation, so that a test can stop or lose any of them."""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 1 << 16
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Disk:
    """The operations that a store is made of; only `sync…` makes anything survive a loss of power."""

    def create(self, path: str, data: bytes) -> None:
        """Write a whole file, which nobody reads under this name before it is complete."""
        descriptor = os.open(path, _WRITE_NEW, _FILE_MODE)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what was there, in one step."""
        os.rename(old, new)

    def unlink(self, path: str) -> bool:
        """Remove a file; False if it was not there."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a file, which is made where it is missing."""
        descriptor = os.open(path, _APPEND, _FILE_MODE)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def overwrite(self, path: str, changes: Mapping[int, bytes]) -> None:
        """Change some bytes of a file, by their offsets; each change lies within one page."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in changes.items():
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file off."""
        os.truncate(path, size)

    def stamp(self, path: str, seconds: float, content: bytes) -> None:
        """Make a small file with this time of change, which is all that most of them tell."""
        self.create(path, content)
        os.utime(path, (seconds, seconds))

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, for its owner only."""
        with suppress(FileExistsError):
            try:
                os.mkdir(path, _DIRECTORY_MODE)
            except FileNotFoundError:
                parent = os.path.dirname(path)
                if os.path.lexists(parent):
                    # A link that leads nowhere, or a place where nothing can be made.
                    raise
                self.make_directory(parent)
                self.make_directory(path)

    def sync_file(self, descriptor: int) -> None:
        """Return when everything written to an open file will survive a loss of power."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory will survive a loss of power."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_everything(self, root: str) -> None:
        """Return when everything done so far on the filesystem of `root` will survive a loss of power."""
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
        """Open a file that is appended to again and again."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)

    def write(self, descriptor: int, data: bytes) -> None:
        """Add to a file that is open for appending."""
        _write_all(descriptor, data)


_libc = ctypes.CDLL(None, use_errno=True)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    # A signal or a full disk may cut a write short; the next one tells which.
    while written < len(data):
        written += os.write(descriptor, data[written:])


def read_file(path: str) -> bytes:
    """Return what a plain file holds; a pipe or a link that somebody has put there is never waited for or followed."""
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
