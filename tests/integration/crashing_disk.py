"""Disks on which something can happen at every operation: one notes them, one kills its process there."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

from kingdom.backends.files.system.disk import Disk

Moment = Literal["before", "middle", "after"]
OPERATIONS = tuple(name for name in vars(Disk) if not name.startswith("_"))
# Where half of an operation can be there: the first bytes of a file, or its name without its time.
DIVISIBLE = frozenset({"create", "append", "write", "stamp"})
# What fails where there is no space; with delayed allocation that may only show in a sync.
NEEDS_SPACE = DIVISIBLE | {"make_directory", "open_for_appending", "sync_file"}


class InterceptedDisk(Disk):
    """A disk that hands every operation to `around`, which carries it out or not."""

    _inside = False

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - for others
        return act()


def _intercepted(name: str) -> Callable[..., Any]:
    plain = getattr(Disk, name)

    def operate(self: InterceptedDisk, *arguments: Any) -> Any:
        # A directory whose parent is missing is not made at once: that one comes first, and both come by here.
        if name == "make_directory" and not Path(arguments[0]).parent.is_dir():
            return plain(self, *arguments)
        # What an operation is made of is no operation of its own.
        if self._inside:
            return plain(self, *arguments)
        self._inside = True
        try:
            return self.around(name, arguments, lambda: plain(self, *arguments))
        finally:
            self._inside = False

    return operate


for _name in OPERATIONS:
    setattr(InterceptedDisk, _name, _intercepted(_name))


class CountingDisk(InterceptedDisk):
    """Notes the name of every operation."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - as above
        self.operations.append(name)
        return act()


class TrappedDisk(InterceptedDisk):
    """Does something else at one operation, counted from when it is armed."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.is_armed = False

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        if not self.is_armed:
            return act()
        self._left -= 1
        if self._left >= 0:
            return act()
        self.is_armed = False
        return self.spring(name, arguments, act)

    def spring(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        raise NotImplementedError


class FullDisk(TrappedDisk):
    """Has no room for one operation, and for all others."""

    def spring(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - as above
        fail_halfway(name, arguments, errno.ENOSPC)


class FailingDisk(TrappedDisk):
    """Fails from one operation on until it is mended: all of them, or those that need space where it is only full."""

    def __init__(self, at: int, code: int) -> None:
        super().__init__(at)
        self._code = code
        self.is_mended = True

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        if not self.is_mended and (self._code != errno.ENOSPC or name in NEEDS_SPACE):
            fail_halfway(name, arguments, self._code)
        return super().around(name, arguments, act)

    def spring(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        self.is_mended = False
        return self.around(name, arguments, act)


class KillingDisk(TrappedDisk):
    """Kills its own process at one operation."""

    def __init__(self, at: int, moment: Moment) -> None:
        super().__init__(at)
        self._moment = moment

    def spring(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        if self._moment == "middle":
            _half(name, arguments)
        elif self._moment == "after":
            act()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")


def fail_halfway(name: str, arguments: tuple[Any, ...], code: int) -> NoReturn:
    """Fail an operation, of which half may be there."""
    if name in DIVISIBLE:
        _half(name, arguments)
    raise OSError(code, os.strerror(code))


def _half(name: str, arguments: tuple[Any, ...]) -> None:
    target, what = arguments[0], arguments[-1]
    if name == "write":
        os.write(target, what[: len(what) // 2])
        return
    # A file that is stamped is made like any other, and gets its time then.
    beginning = os.O_APPEND if name == "append" else os.O_TRUNC
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | beginning, 0o600)
    os.write(descriptor, what[: len(what) // 2])
    os.close(descriptor)
