"""What the kernel tells about processes, and the end of a whole group of them."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

_ENDED = frozenset({b"Z", b"X", b""})
_POLL_SECONDS = 0.002


async def kill_group(group: int) -> None:
    """Kill a process group, and wait until nothing of it is left: a process may take a moment to die."""
    with suppress(ProcessLookupError):
        while True:
            # The signal tells cheaply that nothing is there; only what is there is looked at.
            os.killpg(group, signal.SIGKILL)
            if not _has_members(group):
                return
            await asyncio.sleep(_POLL_SECONDS)


def child_pids(parent: int) -> list[int]:
    """Return the pids of all processes that a process has started, or that were left to it."""
    return [pid for pid in _pids() if _field(pid, 1) == b"%d" % parent]


def process_state(pid: int) -> bytes:
    """Return the letter for what a process does, or nothing if it has ended."""
    return _field(pid, 0)


def describe_exit(code: int) -> str:
    """Return in words how a program ended."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"killed by {name}" if code < 0 else f"exit code {code}, as after {name}"


def _has_members(group: int) -> bool:
    """Return whether a process group has members that are more than zombies."""
    return any(_field(pid, 2) == b"%d" % group and process_state(pid) not in _ENDED for pid in _pids())


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _field(pid: int, number: int) -> bytes:
    """Return a field that the kernel keeps on a process, counted from its state, or nothing if it has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[number]
    except OSError:
        return b""
