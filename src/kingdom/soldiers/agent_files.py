"""The files that agents can change: the WorkSpace, the HOME and the checkouts of a run, with everything below.

Outside of a sandbox nothing else opens them. An agent may be at work meanwhile, and put a link, a pipe or a folder
where a file was a moment ago. So a file is opened step by step, from a root that only the host can replace: each step
is one name in an open folder, and no link is followed.
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

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without waiting for a writer: the agent may have put a pipe there.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# An agent that puts something in the way as fast as it is moved aside must not keep the host busy forever.
_TRIES = 100
# There may be any number of files; looking at them must not take long.
_LOOKED_AT_MAX = 20_000
_DEPTH_MAX = 64


@dataclass(frozen=True, slots=True)
class AgentFile:
    """A file or folder that agents can change; `name` is its path below `root`, which itself they cannot replace."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the whole path, for messages and for agents; nothing may be opened by it."""
        return self.root / self.name

    def read(self, limit: int) -> bytes | None:
        """Return the content; None where there is no regular file, or one that is longer than the limit."""
        try:
            with self.opened() as file:
                content = file.read(limit + 1)
        except OSError:
            return None
        return content if len(content) <= limit else None

    def read_end(self, size: int) -> bytes | None:
        """Return the last bytes; None where there is no regular file."""
        try:
            with self.opened() as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except OSError:
            return None

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open a regular file for reading; raises OSError where there is none."""
        with self._above() as (folder, name):
            descriptor = os.open(name, _READ, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(ENOENT, "there is no regular file", str(self.path))
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def found(self) -> "FoundFile | None":
        """Return the size and the time of a regular file; None where there is none."""
        try:
            status = self._status()
        except OSError:
            return None
        return FoundFile(self, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def is_there(self) -> bool:
        """Tell whether anything stands here, be it a link to nowhere; what a link above leads to is not looked at."""
        try:
            self._status()
        except OSError:
            return False
        return True

    def is_free(self) -> bool:
        """Tell whether nothing stands here, and nothing but folders above, so that a file can be added."""
        try:
            self._status()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def write(self, text: str) -> None:
        """Write a file so that it is there whole or not at all, with the folders above it; raises ProgramFailed.

        A folder in its place is moved aside.
        """
        with self._succeeding("written"), self._above(make=True) as (folder, name):

            def write() -> None:
                try:
                    write_atomically_in(folder, name, text)
                except IsADirectoryError:
                    _move_aside(folder, name)
                    raise

            _insist(write)

    def add(self, original: BinaryIO, mode: int) -> bool:
        """Copy something to where nothing stands, with the folders above; return whether nothing was in the way."""
        try:
            with self._above(make=True) as (folder, name):
                descriptor = os.open(name, _NEW, stat.S_IMODE(mode), dir_fd=folder)
        except OSError as error:
            if is_in_the_way(error):
                return False
            raise
        with os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(original, copy)
        return True

    def link_to(self, target: Path) -> None:
        """Put a link here; what stands in its place is moved aside. Raises ProgramFailed."""
        with self._succeeding("linked"), self._above() as (folder, name):

            def link() -> None:
                if _target(folder, name) != str(target):
                    _move_aside(folder, name)
                    os.symlink(target, name, dir_fd=folder)

            _insist(link)

    def make_folder(self) -> None:
        """Make a folder unless there is one; what stands in its place is moved aside. Raises ProgramFailed."""
        with self._succeeding("made"), self._above() as (folder, name):

            def make() -> None:
                try:
                    os.close(open_folder_in(folder, name))
                except OSError:
                    _move_aside(folder, name)
                    os.mkdir(name, dir_fd=folder)

            _insist(make)

    def rename(self, name: str) -> None:
        """Give a file another name in the same folder; raises OSError."""
        with self._above() as (folder, before):
            os.rename(before, name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Remove a file or a link; raises OSError where there is none."""
        with self._above() as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _status(self) -> os.stat_result:
        with self._above() as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    @contextmanager
    def _above(self, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder above, and yield it with the last part of the name."""
        *way, name = _parts(self)
        with _opened_folder(self.root, way, make=make) as folder:
            yield folder, name

    @contextmanager
    def _succeeding(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ProgramFailed(
                f"{self.path} could not be {done}: {error}; look whether an agent has put something in its way, and"
                " whether the disk has room"
            ) from error


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file with its size in bytes, and when it was last written in seconds since 1970."""

    file: AgentFile
    size: int
    at: float


def matching(root: Path, pattern: str) -> list[FoundFile]:
    """Return the regular files that a pattern names, such as `projects/*/main.txt`; a star never means a slash."""
    names = [""]
    for part in PurePosixPath(pattern).parts:
        if "*" in part:
            found = [(name, entry.name) for name in names for entry in _entries(root, name)]
            names = [_below(name, child) for name, child in found if fnmatchcase(child, part)][:_LOOKED_AT_MAX]
        else:
            names = [_below(name, part) for name in names]
    return [file for name in names if (file := AgentFile(root, name).found())]


def files_below(root: Path, *, leaving_out: str) -> Iterator[FoundFile]:
    """Yield the regular files below a root, as far as that does not take long, without those of some name."""
    folders, left = [""], _LOOKED_AT_MAX
    while folders and left > 0:
        folder = folders.pop()
        for entry in _entries(root, folder):
            left -= 1
            name = _below(folder, entry.name)
            if entry.name == leaving_out:
                continue
            if entry.is_dir(follow_symlinks=False) and name.count("/") < _DEPTH_MAX:
                folders.append(name)
            elif entry.is_file(follow_symlinks=False):
                # An agent is at work here: what was there a moment ago may be gone.
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield FoundFile(AgentFile(root, name), status.st_size, status.st_mtime)


def is_in_the_way(error: OSError) -> bool:
    """Tell whether something else stands where a file or a folder was looked for: nothing, a link, another kind."""
    return isinstance(error, FileExistsError | FileNotFoundError | NotADirectoryError) or error.errno == ELOOP


def _parts(file: AgentFile) -> tuple[str, ...]:
    path = PurePosixPath(file.name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ProgramFailed(f"{file.name!r} is no name of a file below {file.root}: name it without a leading / and ..")
    return path.parts


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


@contextmanager
def _opened_folder(root: Path, way: list[str], *, make: bool = False) -> Iterator[int]:
    current = os.open(root, _FOLDER)
    try:
        for name in way:
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
    """Yield what lies in a folder, up to a limit; nothing where there is none."""
    with suppress(OSError), _opened_folder(root, [*PurePosixPath(name).parts]) as folder:
        yield from islice(entries_in(folder), _LOOKED_AT_MAX)


def open_folder_in(folder: int, name: str) -> int:
    """Open a folder in an open folder, only to go on from there; raises NotADirectoryError where it is a link."""
    return os.open(name, _FOLDER, dir_fd=folder)


def entries_in(folder: int) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in an open folder; an entry can be looked at until the next one comes."""
    descriptor = os.open(".", _LISTED, dir_fd=folder)
    try:
        with os.scandir(descriptor) as found:
            yield from found
    finally:
        os.close(descriptor)


def _target(folder: int, name: str) -> str | None:
    """Return where a link leads to; None where there is none."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _move_aside(folder: int, name: str) -> None:
    """Move away what the agent put here, as `{name}.found-1`; a mere link is removed."""
    status = _status_or_none(folder, name)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        os.unlink(name, dir_fd=folder)
    else:
        found = (f"{name}.found-{number}" for number in count(1))
        free = next(aside for aside in found if _status_or_none(folder, aside) is None)
        os.rename(name, free, src_dir_fd=folder, dst_dir_fd=folder)


def _status_or_none(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _insist(act: Callable[[], None]) -> None:
    """Do something, again and again while an agent puts something in the way."""
    for _ in range(_TRIES - 1):
        try:
            return act()
        except (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
    return act()
