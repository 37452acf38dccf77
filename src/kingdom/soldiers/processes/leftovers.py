"""Kill processes that an earlier run of this host left behind."""

import os
import select
import signal
from pathlib import Path

import structlog

_DYING_SECONDS = 10.0
_log = structlog.get_logger("kingdom.soldiers")


def kill_leftover_processes(directory: Path) -> int:
    """Kill every process whose HOME is the directory of this host or below it; return how many there were.

    Programs die with their host, but a program that was just being started when the host died may survive. Git programs
    of a host have its directory as their HOME, and agents have a folder below it. A process with the same HOME as this
    process is kept: if the directory is the home of the service account, other roles and login sessions have this HOME.
    """
    home = b"HOME=" + os.fsencode(directory)
    kept = _read_homes("self")
    ended = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            ended += _kill_if_leftover(int(entry.name), home, kept)
    if ended:
        _log.warning("killed processes that an earlier run of this host left behind", processes=ended)
    return ended


def _kill_if_leftover(pid: int, home: bytes, kept: set[bytes]) -> bool:
    try:
        # The process is opened before the check, so a new process with the same pid cannot be killed by mistake.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        homes = _read_homes(str(pid))
        if homes & kept or not any(each == home or each.startswith(home + b"/") for each in homes):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        # Until it is dead, a system call in which it was killed may still create a file.
        select.select([process], [], [], _DYING_SECONDS)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(process)


def _read_homes(process: str) -> set[bytes]:
    """Return the entries for HOME in the environment that a process was started with."""
    entries = Path("/proc", process, "environ").read_bytes().split(b"\0")
    return {entry for entry in entries if entry.startswith(b"HOME=")}
