"""What an earlier life of a host left running, found by the home directory that only its programs have."""

import os
import signal
from pathlib import Path

import structlog

_log = structlog.get_logger("kingdom.soldiers")


def kill_leftover_processes(directory: Path) -> int:
    """Kill every process whose HOME lies in the directory of this host, which nobody else uses; returns how many.

    Programs die with their host, but one that was just being started may miss that.
    """
    home = b"HOME=" + os.fsencode(directory)
    ended = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            ended += _end(int(entry.name), home)
    if ended:
        _log.warning("ended what an earlier life of this host had left running", processes=ended)
    return ended


def _end(pid: int, home: bytes) -> bool:
    try:
        # Held before it is looked at, so that the one that is killed is the one that was looked at.
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
