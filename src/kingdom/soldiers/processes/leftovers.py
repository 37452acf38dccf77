"""Kill processes that an earlier run of this host left behind."""

import os
import signal
from pathlib import Path

import structlog

_log = structlog.get_logger("kingdom.soldiers")


def kill_leftover_processes(directory: Path) -> int:
    """Kill every process whose HOME is below the directory of this host; return how many there were.

    Programs die with their host, but a program that was just being started when the host died may survive.
    """
    home = b"HOME=" + os.fsencode(directory)
    ended = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            ended += _kill_if_leftover(int(entry.name), home)
    if ended:
        _log.warning("killed processes that an earlier run of this host left behind", processes=ended)
    return ended


def _kill_if_leftover(pid: int, home: bytes) -> bool:
    try:
        # The process is opened before the check, so a new process with the same pid cannot be killed by mistake.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if not any(each == home or each.startswith(home + b"/") for each in environment):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(process)
