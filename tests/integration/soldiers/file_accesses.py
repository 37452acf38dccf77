"""Records every access of this process to files that agents can change, with the module that made it.

Python reports most accesses to an audit hook. It does not report functions that only read the status of a file, nor the
folder of `os.open`, so these functions are wrapped.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

# Below the folder of a host (see `kingdom.soldiers.workplace.host_folders`): a WorkSpace, a HOME, a checkout, and both
# a WorkSpace and a checkout that are being removed.
_CHANGEABLE = re.compile(
    r"(workspace/[^/]+/[^/]+|runs/[^/]+/(home|trees/[^./][^/]*|trees/\.[^/]+/removed-[^/]+|[^/]+-space[^/]*))/(?P<name>.+)"
)
# For each audit event: the positions of its paths among the arguments, and of the folders that they are relative to.
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.chdir": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.getxattr": ((0, None),),
    "os.link": ((0, 2), (1, 3)),
    "os.listdir": ((0, None),),
    "os.listxattr": ((0, None),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.scandir": ((0, None),),
    "os.setxattr": ((0, None),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
}
_LOOKS = ("access", "lstat", "readlink", "stat", "statvfs")
_HOUSE = ("kingdom.", "tests.")
# These modules access files on behalf of their callers.
_HELPERS = {__name__, "kingdom.atomic_write"}
_SANDBOX = "bwrap"


class Access(NamedTuple):
    """One access: the module or program, its action, and the file, relative to the parent of its WorkSpace."""

    who: str
    what: str
    file: str


def note_accesses(directory: Path, notes: Path) -> None:
    """Record each later access below the folder of a host as a line in a file. This cannot be stopped."""
    _Observer(directory, os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)).begin()


def noted_accesses(notes: Path) -> set[Access]:
    """Return the recorded accesses."""
    return {Access(**json.loads(line)) for line in notes.read_text().splitlines()}


class _Observer:
    def __init__(self, directory: Path, notes: int) -> None:
        self._directory = str(directory)
        self._notes = notes
        self._open_in = threading.local()
        self._readlink = os.readlink

    def begin(self) -> None:
        for name in _LOOKS:
            setattr(os, name, self._looking(name))
        os.open = self._opening(os.open)
        sys.addaudithook(self._hook)

    def _looking(self, name: str) -> Any:
        look = getattr(os, name)

        def noted(path: Any, *arguments: Any, **options: Any) -> Any:
            self._note(f"os.{name}", path, options.get("dir_fd"))
            return look(path, *arguments, **options)

        return noted

    def _opening(self, real: Any) -> Any:
        def noted(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            self._open_in.folder = dir_fd
            try:
                return int(real(path, flags, mode, dir_fd=dir_fd))
            finally:
                self._open_in.folder = None

        return noted

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._note_program(*arguments[1:3])
        for path, folder in _PATHS.get(event, ()):
            known = getattr(self._open_in, "folder", None) if event == "open" else None
            self._note(event, arguments[path], known if folder is None else arguments[folder])

    def _note_program(self, argv: Any, cwd: Any) -> None:
        """Record a program outside of a sandbox that runs in a checkout, or has one in its arguments."""
        program = os.path.basename(os.fsdecode(argv[0]))  # noqa: PTH119 - looks at no file
        if program == _SANDBOX:
            return
        for word in (cwd or "", *argv):
            # Record the folder itself, because the program can reach everything in it.
            self._note("run", f"{os.fsdecode(word)}/.", None, program)

    def _note(self, what: str, path: Any, folder: int | None, who: str = "") -> None:
        name = self._absolute(path, folder)
        found = _CHANGEABLE.fullmatch(name.removeprefix(f"{self._directory}/")) if name else None
        if found and name.startswith(self._directory):
            access = Access(who or _module(), what, found["name"])
            os.write(self._notes, f"{json.dumps(access._asdict())}\n".encode())

    def _absolute(self, path: Any, folder: int | None) -> str:
        """Return the absolute path, or an empty string if the argument is not a path."""
        if isinstance(path, int):
            return self._linked(f"/proc/self/fd/{path}")
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        name = os.fsdecode(path)
        if name.startswith("/proc/self/fd/"):
            return self._linked(name)
        if name.startswith("/"):
            return name
        return f"{self._linked(f'/proc/self/fd/{folder}')}/{name}" if folder is not None and folder >= 0 else name

    def _linked(self, path: str) -> str:
        try:
            return self._readlink(path)
        except OSError:
            return ""


def _module() -> str:
    """Return the nearest Kingdom module on the stack."""
    return next((name for name in _modules() if name.startswith(_HOUSE) and name not in _HELPERS), "nobody")


def _modules() -> Iterator[str]:
    """Yield the modules of all callers, the nearest first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # A module that runs as a program has its name only here.
        spec = frame.f_globals.get("__spec__")
        yield spec.name if spec else frame.f_globals.get("__name__", "")
        frame = frame.f_back
