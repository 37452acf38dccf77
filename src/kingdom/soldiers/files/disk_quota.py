"""How much of the disk a run may take: its checkouts, their git directories, its HOME and its WorkSpaces together.

The kernel limits one file, not their sum, so this process adds them up while a program of the run is at work. Agents
may change the files meanwhile: folders are opened step by step, and no link is followed.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kingdom.errors import ProgramFailed
from kingdom.soldiers.files.agent_files import entries_in, open_folder_in

# A million files are more than any project has, and are still added up within seconds.
FILES_MAX = 1_000_000
# Each level is an open file. No project has so many, and what lies deeper could not be added up.
DEPTH_MAX = 128
_EVERY_SECONDS = 2.0
# Adding up takes at most a part of the time, however many files there are.
_REST_PER_WORK = 20
_MIB = 1 << 20
# What the kernel counts blocks in, whatever the disk has.
_BLOCK = 512
_READ_AND_ENTER = 0o500


class DiskQuotaExceeded(ProgramFailed):
    """Raised when a run takes more of the disk than it may."""

    code = "disk_quota_exceeded"


@dataclass(frozen=True, slots=True)
class DiskQuota:
    """What the folders of a run may take together; `folders` returns those that there are."""

    folders: Callable[[], Iterable[Path]]
    mib: int

    async def wait_until_exceeded(self) -> str:
        """Wait until the run takes more than it may, and return that in words."""
        while True:
            begun = time.monotonic()
            if reason := await asyncio.to_thread(self.describe_excess):
                return reason
            await asyncio.sleep(max(_EVERY_SECONDS, _REST_PER_WORK * (time.monotonic() - begun)))

    async def check(self) -> None:
        """Raise DiskQuotaExceeded if the run takes more than it may."""
        if reason := await asyncio.to_thread(self.describe_excess):
            raise DiskQuotaExceeded(reason)

    def describe_excess(self) -> str:
        """Return in words what the run takes, if that is too much; the empty string if it is not."""
        use = DiskUsage()
        for folder in self.folders():
            with suppress(FileNotFoundError, NotADirectoryError):
                use.add(folder)
        remedy = "have agents remove what is not needed, or allow more"
        if use.bytes > self.mib * _MIB:
            used = use.bytes / _MIB
            return f"the run takes {used:.0f} MiB of disk, and soldiers.disk_mb allows {self.mib}: {remedy}"
        if use.files > FILES_MAX:
            return f"the run has more than {FILES_MAX} files, which soldiers.disk_mb does not allow: {remedy}"
        if use.is_too_deep:
            return f"the run has more than {DEPTH_MAX} folders in one another, which soldiers.disk_mb does not allow"
        return ""


class DiskUsage:
    """What some folders take of the disk: the blocks of all that lies in them, and how many files that is."""

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.is_too_deep = False
        self._counted: set[int] = set()

    def add(self, folder: Path) -> None:
        """Add a folder with everything in it; raises OSError where there is none."""
        self._add(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), 0)

    def _add(self, folder: int, depth: int) -> None:
        """Add an open folder, and close it."""
        try:
            if depth > DEPTH_MAX:
                self.is_too_deep = True
                return
            with _readable(folder):
                for name in self._count_entries(folder):
                    # An agent is at work here: what was there a moment ago may be gone.
                    with suppress(FileNotFoundError, NotADirectoryError):
                        self._add(open_folder_in(folder, name), depth + 1)
        finally:
            os.close(folder)

    def _count_entries(self, folder: int) -> list[str]:
        """Count what lies in a folder, and return the names of the folders in it."""
        names = []
        for entry in entries_in(folder):
            if self.files > FILES_MAX:
                break
            with suppress(FileNotFoundError):
                if self._count(entry.stat(follow_symlinks=False)):
                    names.append(entry.name)
        return names

    def _count(self, status: os.stat_result) -> bool:
        """Count what something takes, once however many names it has; return whether it is a folder."""
        self.files += 1
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder or status.st_nlink == 1 or status.st_ino not in self._counted:
            self.bytes += status.st_blocks * _BLOCK
        if not is_folder and status.st_nlink > 1:
            self._counted.add(status.st_ino)
        return is_folder


@contextmanager
def _readable(folder: int) -> Iterator[None]:
    """Let this process read a folder for a moment that the agent has forbidden itself to read."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & _READ_AND_ENTER == _READ_AND_ENTER:
        yield
        return
    # By its descriptor: the name may mean something else by now.
    place = Path(f"/proc/self/fd/{folder}")
    place.chmod(mode | _READ_AND_ENTER)
    try:
        yield
    finally:
        place.chmod(mode)
