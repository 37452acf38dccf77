"""Files that agents can change: the WorkSpace, the HOME and the checkouts of a run.

Outside of a sandbox only this module opens them. A running agent may replace a file with a link, a pipe or a folder at
any moment. So a file is opened step by step, from a root that only the host can replace: each step opens one name in an
open folder, and no link is followed.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import ELOOP, ENOENT
from fnmatch import fnmatchcase
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from kingdom.atomic_write import write_atomically_in
from kingdom.errors import ProgramFailed

# Flags of os.open.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK is needed because the agent may have put a pipe there, and the host would wait for its content.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# An agent that recreates an obstacle as fast as it is moved aside must not keep the host busy forever.
_TRIES = 100
# A listing stops after this many entries, so that it does not take too long.
_ENTRIES_MAX = 20_000
_DEPTH_MAX = 64


@dataclass(frozen=True, slots=True)
class AgentFile:
    """A file or folder that agents can change. `name` is its path below `root`. Agents cannot replace `root`."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the whole path, for messages and for agents; never open it."""
        return self.root / self.name

    def read(self, limit: int) -> bytes | None:
        """Return the content; None if there is no regular file or it is longer than the limit."""
        try:
            with self.open() as file:
                content = file.read(limit + 1)
        except OSError:
            return None
        return content if len(content) <= limit else None

    def read_end(self, size: int) -> bytes | None:
        """Return the last bytes; None if there is no regular file."""
        try:
            with self.open() as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except OSError:
            return None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open a regular file for reading; raises OSError if there is none."""
        with self._parent_folder() as (folder, name):
            descriptor = os.open(name, _READ, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(ENOENT, "there is no regular file", str(self.path))
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def info(self) -> "AgentFileInfo | None":
        """Return the size and the modification time of a regular file; None if there is none."""
        try:
            status = self._status()
        except OSError:
            return None
        return AgentFileInfo(self, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def exists(self) -> bool:
        """Return whether anything exists here, even a dangling link. No link among the parents is followed."""
        try:
            self._status()
        except OSError:
            return False
        return True

    def is_free(self) -> bool:
        """Return whether a file can be added: nothing exists here, and every existing parent is a folder."""
        try:
            self._status()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def write(self, text: str) -> None:
        """Write a file atomically, and create its parent folders; raise ProgramFailed if this fails.

        If there is a folder with the name of the file, it is moved aside.
        """
        with self._explaining_failure("written"), self._parent_folder(make=True) as (folder, name):

            def write() -> None:
                try:
                    write_atomically_in(folder, name, text)
                except IsADirectoryError:
                    _move_aside(folder, name)
                    raise

            _retry_on_conflict(write)

    def add(self, original: BinaryIO, mode: int) -> bool:
        """Copy a file here and create its parent folders; return False if something else is in the way."""
        try:
            with self._parent_folder(make=True) as (folder, name):
                descriptor = os.open(name, _NEW, stat.S_IMODE(mode), dir_fd=folder)
        except OSError as error:
            if is_path_conflict(error):
                return False
            raise
        with os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(original, copy)
        return True

    def link_to(self, target: Path) -> None:
        """Create a link here, and move anything else aside; raise ProgramFailed if this fails."""
        with self._explaining_failure("linked"), self._parent_folder() as (folder, name):

            def link() -> None:
                if _link_target(folder, name) != str(target):
                    _move_aside(folder, name)
                    os.symlink(target, name, dir_fd=folder)

            _retry_on_conflict(link)

    def make_folder(self) -> None:
        """Create a folder here if needed, and move anything else aside; raise ProgramFailed if this fails."""
        with self._explaining_failure("created"), self._parent_folder() as (folder, name):

            def make() -> None:
                try:
                    os.close(open_folder_in(folder, name))
                except OSError:
                    _move_aside(folder, name)
                    os.mkdir(name, dir_fd=folder)

            _retry_on_conflict(make)

    def rename(self, name: str) -> None:
        """Rename a file within its folder; raises OSError."""
        with self._parent_folder() as (folder, before):
            os.rename(before, name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Remove a file or a link; raises OSError if there is none."""
        with self._parent_folder() as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _status(self) -> os.stat_result:
        with self._parent_folder() as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    @contextmanager
    def _parent_folder(self, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent folder, creating it with `make`; yield it with the last part of the name."""
        *parents, name = _parts(self)
        with _opened_folder(self.root, parents, make=make) as folder:
            yield folder, name

    @contextmanager
    def _explaining_failure(self, done: str) -> Iterator[None]:
        """Raise ProgramFailed with advice if the block fails; `done` is a participle such as "written"."""
        try:
            yield
        except OSError as error:
            raise ProgramFailed(
                f"{self.path} could not be {done}: {error}; check whether an agent has put something in its place, and"
                " whether the disk has room"
            ) from error


@dataclass(frozen=True, slots=True)
class AgentFileInfo:
    """A regular file with its size in bytes and its modification time in seconds since 1970."""

    file: AgentFile
    size: int
    modified_at: float


def find_files(root: Path, pattern: str) -> list[AgentFileInfo]:
    """Return the regular files that match a pattern such as `projects/*/main.txt`; a star never matches a slash."""
    names = [""]
    for part in PurePosixPath(pattern).parts:
        if "*" in part:
            found = [(name, entry.name) for name in names for entry in _entries(root, name)]
            names = [_below(name, child) for name, child in found if fnmatchcase(child, part)][:_ENTRIES_MAX]
        else:
            names = [_below(name, part) for name in names]
    return [file for name in names if (file := AgentFile(root, name).info())]


def list_files_below(root: Path, *, leaving_out: str) -> Iterator[AgentFileInfo]:
    """Yield regular files below a root, up to a limit, and skip files and folders with the name `leaving_out`."""
    folders, entries_left = [""], _ENTRIES_MAX
    while folders and entries_left > 0:
        folder = folders.pop()
        for entry in _entries(root, folder):
            entries_left -= 1
            name = _below(folder, entry.name)
            if entry.name == leaving_out:
                continue
            if entry.is_dir(follow_symlinks=False) and name.count("/") < _DEPTH_MAX:
                folders.append(name)
            elif entry.is_file(follow_symlinks=False):
                # The agent may have removed the file a moment ago.
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield AgentFileInfo(AgentFile(root, name), status.st_size, status.st_mtime)


def is_path_conflict(error: OSError) -> bool:
    """Return whether an error means that the path holds nothing, a link, or another kind of file than expected."""
    return isinstance(error, FileExistsError | FileNotFoundError | NotADirectoryError) or error.errno == ELOOP


def _parts(file: AgentFile) -> tuple[str, ...]:
    path = PurePosixPath(file.name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ProgramFailed(
            f"{file.name!r} is not a path below {file.root}: write it without a leading / and without .."
        )
    return path.parts


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


@contextmanager
def _opened_folder(root: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open a folder below a root; with `make`, create it and its parents if needed."""
    current = os.open(root, _FOLDER)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=current)
            below = open_folder_in(current, name)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _entries(root: Path, name: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, up to a limit; nothing if the folder does not exist."""
    with suppress(OSError), _opened_folder(root, [*PurePosixPath(name).parts]) as folder:
        yield from islice(entries_in(folder), _ENTRIES_MAX)


def open_folder_in(folder: int, name: str) -> int:
    """Open a folder within an open folder as a base for further steps; raises NotADirectoryError for a link."""
    return os.open(name, _FOLDER, dir_fd=folder)


def entries_in(folder: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of an open folder; each entry can be used until the next one is taken."""
    descriptor = os.open(".", _LISTED, dir_fd=folder)
    try:
        with os.scandir(descriptor) as found:
            yield from found
    finally:
        os.close(descriptor)


def status_in(folder: int, name: str) -> os.stat_result | None:
    """Return the status of an entry of an open folder, or None if there is none. No link is followed."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link_target(folder: int, name: str) -> str | None:
    """Return the target of a link; None if there is no link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _move_aside(folder: int, name: str) -> None:
    """Rename what the agent put here to `{name}.found-1` or the next free number; a link is removed."""
    status = status_in(folder, name)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        os.unlink(name, dir_fd=folder)
    else:
        found = (f"{name}.found-{number}" for number in count(1))
        free = next(aside for aside in found if status_in(folder, aside) is None)
        os.rename(name, free, src_dir_fd=folder, dst_dir_fd=folder)


def _retry_on_conflict(act: Callable[[], None]) -> None:
    """Run an action, and repeat it while an agent keeps changing the path."""
    for _ in range(_TRIES - 1):
        try:
            return act()
        except (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
    return act()
