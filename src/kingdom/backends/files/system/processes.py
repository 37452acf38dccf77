"""Read information about other processes from /proc."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path


def holders_of(lock: os.stat_result) -> list[int]:
    """Return the other processes that hold the lock of a file. Return an empty list if /proc is not available."""
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # A line is "1: FLOCK ADVISORY WRITE 4711 fd:01:131074 0 EOF". For a waiting process, the second field is "->".
        pids = {int(w[4]) for w in lines if w[1] == "FLOCK" and w[5].rpartition(":")[2] == str(lock.st_ino)}
        return [pid for pid in pids if pid > 0 and pid != os.getpid() and _has_open(pid, lock)]
    return []


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Return whether a process has this file open. The inode number alone is not unique across filesystems."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    return True
    return False


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False


def own_process() -> str:
    """Return an id of this process that is unique within one boot. Return an empty text if /proc is not available."""
    return _process_id(os.getpid())


@cache
def _process_id(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}:{_started(pid)}:{os.readlink('/proc/self/ns/pid')}"
    return ""


def has_ended(process: str) -> bool:
    """Return whether a process has ended. Return False if that is unknown, as for another PID namespace."""
    pid, _, rest = process.partition(":")
    started, _, namespace = rest.partition(":")
    try:
        if not pid or os.readlink("/proc/self/ns/pid") != namespace:
            return False
        return _started(int(pid)) != started
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _started(pid: int) -> str:
    """Return the start time of a process; empty if it is a zombie."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]
