"""The disk quota of a run: its checkouts, their git directories, its HOME and its WorkSpaces together.

The kernel limits the size of one file, but not of all files together. So this process adds up their sizes while a
program of the run is running. Agents may change the files meanwhile, so folders are opened step by step, and no link is
followed.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from kingdom.errors import ProgramFailed
from kingdom.soldiers.files.agent_files import entries_in, open_folder_in, status_in

_T = TypeVar("_T")
# No project has this many files, and they can still be counted within seconds.
FILES_MAX = 1_000_000
# Each level of folders needs an open descriptor, and no project has this many levels.
DEPTH_MAX = 128
_PAUSE_SECONDS = 2.0
# The pause after a slow count is this many times as long as the count.
_PAUSE_FACTOR = 20
_MIB = 1 << 20
# The unit of st_blocks, which is the same for all file systems.
_BLOCK_BYTES = 512
_READ_AND_ENTER = 0o500
# How often a folder is made readable while its agent removes the permission.
_TRIES = 5


class DiskQuotaExceeded(ProgramFailed):
    """Raised when a run exceeds its disk quota."""

    code = "disk_quota_exceeded"


@dataclass(frozen=True, slots=True)
class DiskQuota:
    """The quota of all folders of a run together; `folders` returns those that exist."""

    folders: Callable[[], Iterable[Path]]
    mib: int

    async def wait_until_exceeded(self) -> str:
        """Wait until the run exceeds its quota, and describe how."""
        while True:
            begun = time.monotonic()
            if reason := await asyncio.to_thread(self.describe_excess):
                return reason
            await asyncio.sleep(max(_PAUSE_SECONDS, _PAUSE_FACTOR * (time.monotonic() - begun)))

    async def check(self) -> None:
        """Raise DiskQuotaExceeded if the run exceeds its quota."""
        if reason := await asyncio.to_thread(self.describe_excess):
            raise DiskQuotaExceeded(reason)

    def describe_excess(self) -> str:
        """Describe how the run exceeds its quota, or why that is unknown; return the empty string if it does not."""
        use = DiskUsage()
        try:
            for folder in self.folders():
                with suppress(FileNotFoundError, NotADirectoryError):
                    use.add(folder)
        except OSError as error:
            return f"the disk usage of the run cannot be measured, which soldiers.disk_mb requires: {error}"
        remedy = "let agents remove files that are not needed, or allow more"
        if use.bytes > self.mib * _MIB:
            used = use.bytes / _MIB
            return f"the run uses {used:.0f} MiB of disk, and soldiers.disk_mb allows {self.mib}: {remedy}"
        if use.files > FILES_MAX:
            return f"the run has more than {FILES_MAX} files, which is the limit with soldiers.disk_mb: {remedy}"
        if use.is_too_deep:
            return f"the run has folders nested more than {DEPTH_MAX} deep, which is the limit with soldiers.disk_mb"
        return ""


class DiskUsage:
    """The disk usage of some folders: the blocks and the number of all files in them."""

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.is_too_deep = False
        self._counted: set[int] = set()

    def add(self, folder: Path) -> None:
        """Add a folder with everything in it; raises OSError if it does not exist."""
        self._add(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), 0)

    def _add(self, folder: int, depth: int) -> None:
        """Add an open folder, and close it."""
        try:
            if depth > DEPTH_MAX:
                self.is_too_deep = True
                return
            for name in self._count_entries(folder):
                # The agent may have removed the folder a moment ago.
                with suppress(FileNotFoundError, NotADirectoryError):
                    self._add(_access(folder, partial(open_folder_in, folder, name)), depth + 1)
        finally:
            os.close(folder)

    def _count_entries(self, folder: int) -> list[str]:
        """Count the entries of a folder, and return the names of the folders among them."""
        entries_max = FILES_MAX + 1 - self.files
        names = _access(folder, lambda: [entry.name for entry in islice(entries_in(folder), entries_max)])
        statuses = ((name, _access(folder, partial(status_in, folder, name))) for name in names)
        return [name for name, status in statuses if status and self._count(status)]

    def _count(self, status: os.stat_result) -> bool:
        """Count an entry; return whether it is a folder. The blocks of a file with several names are counted once."""
        self.files += 1
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder or status.st_nlink == 1 or status.st_ino not in self._counted:
            self.bytes += status.st_blocks * _BLOCK_BYTES
        if not is_folder and status.st_nlink > 1:
            self._counted.add(status.st_ino)
        return is_folder


def _access(folder: int, access: Callable[[], _T]) -> _T:
    """Access an open folder, and make it readable meanwhile if the agent has removed the permission.

    The agent may remove the permission again and again.
    """
    for _ in range(_TRIES - 1):
        with suppress(PermissionError):
            return access()
        with suppress(PermissionError), _readable(folder):
            return access()
    with _readable(folder):
        return access()


@contextmanager
def _readable(folder: int) -> Iterator[None]:
    """Make a folder readable during the block if the agent has removed the permission."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & _READ_AND_ENTER == _READ_AND_ENTER:
        yield
        return
    # Use the descriptor, because something else may have the name of the folder by now.
    path = Path(f"/proc/self/fd/{folder}")
    path.chmod(mode | _READ_AND_ENTER)
    try:
        yield
    finally:
        path.chmod(mode)
