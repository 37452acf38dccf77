"""Disks for crash tests: one records operations, others fail or kill the process at one of them."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

from kingdom.backends.files.system.disk import Disk

Moment = Literal["before", "middle", "after"]
OPERATIONS = tuple(name for name in vars(Disk) if not name.startswith("_"))
# Operations that can be half done: the first bytes of a file, or its name without its time.
DIVISIBLE = frozenset({"create", "append", "write", "stamp"})
# Operations that fail without space. With delayed allocation only a sync may fail.
NEEDS_SPACE = DIVISIBLE | {"make_directory", "open_for_appending", "sync_file"}


class InterceptedDisk(Disk):
    """A disk that passes every operation to `around`, which decides whether to execute it."""

    _inside = False

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - for others
        return act()


def _intercepted(name: str) -> Callable[..., Any]:
    plain = getattr(Disk, name)

    def operate(self: InterceptedDisk, *arguments: Any) -> Any:
        # A directory with a missing parent needs two operations, and both pass here.
        if name == "make_directory" and not Path(arguments[0]).parent.is_dir():
            return plain(self, *arguments)
        # A call inside of another operation is not an operation of its own.
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
    """Records the name of every operation."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - as above
        self.operations.append(name)
        return act()


class TrappedDisk(InterceptedDisk):
    """Calls `spring` instead of the n-th operation after it was armed."""

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
    """Has no space for one operation."""

    def spring(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:  # noqa: ARG002 - as above
        fail_halfway(name, arguments, errno.ENOSPC)


class FailingDisk(TrappedDisk):
    """Fails from one operation on until it is repaired: all operations, or those that need space if it is full."""

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
        raise AssertionError("a killed process continues")


def fail_halfway(name: str, arguments: tuple[Any, ...], code: int) -> NoReturn:
    """Fail an operation, perhaps after its first half."""
    if name in DIVISIBLE:
        _half(name, arguments)
    raise OSError(code, os.strerror(code))


def _half(name: str, arguments: tuple[Any, ...]) -> None:
    target, what = arguments[0], arguments[-1]
    if name == "write":
        os.write(target, what[: len(what) // 2])
        return
    # A stamped file is created first and gets its time afterwards.
    beginning = os.O_APPEND if name == "append" else os.O_TRUNC
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | beginning, 0o600)
    os.write(descriptor, what[: len(what) // 2])
    os.close(descriptor)
