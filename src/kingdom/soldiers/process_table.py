"""What the kernel tells about processes."""

from pathlib import Path

_ENDED = frozenset({b"Z", b"X", b""})


def has_members(group: int) -> bool:
    """Return whether a process group has members that are more than zombies."""
    return any(_field(pid, 2) == b"%d" % group and state(pid) not in _ENDED for pid in _pids())


def children(parent: int) -> list[int]:
    """Return the pids of all processes that a process has started, or that were left to it."""
    return [pid for pid in _pids() if _field(pid, 1) == b"%d" % parent]


def state(pid: int) -> bytes:
    """Return the letter for what a process does, or nothing if it has ended."""
    return _field(pid, 0)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _field(pid: int, number: int) -> bytes:
    """Return a field that the kernel keeps on a process, counted from its state, or nothing if it has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[number]
    except OSError:
        return b""
