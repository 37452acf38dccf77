"""Read the kernel's process table, and kill process groups."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

_ENDED = frozenset({b"Z", b"X", b""})
_POLL_SECONDS = 0.002


async def kill_group(group: int) -> None:
    """Kill a process group, and wait until all its processes have ended."""
    with suppress(ProcessLookupError):
        while True:
            # If the group is gone, the signal fails, and no search through all processes is needed.
            os.killpg(group, signal.SIGKILL)
            if not _has_members(group):
                return
            await asyncio.sleep(_POLL_SECONDS)


def child_pids(parent: int) -> list[int]:
    """Return the pids of all children of a process, including adopted ones."""
    return [pid for pid in _pids() if _field(pid, 1) == b"%d" % parent]


def process_state(pid: int) -> bytes:
    """Return the state letter of a process, or an empty text if it has ended."""
    return _field(pid, 0)


def process_identity(pid: int) -> str:
    """Return a text that no other process with the same pid has, or an empty text if the process has ended."""
    if process_state(pid) in _ENDED:
        return ""
    # The start of the process in clock ticks since the machine was booted. After a reboot, ticks can repeat.
    started = _field(pid, 19)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{boot}.{started.decode()}" if started else ""


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"killed by {name}" if code < 0 else f"exit code {code}, as after {name}"


def _has_members(group: int) -> bool:
    """Return whether a process group has members other than zombies."""
    return any(_field(pid, 2) == b"%d" % group and process_state(pid) not in _ENDED for pid in _pids())


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _field(pid: int, number: int) -> bytes:
    """Return a field of /proc/PID/stat, or an empty text if the process has ended. Field 0 is the state."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[number]
    except OSError:
        return b""
