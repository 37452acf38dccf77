"""What one process can learn about another from /proc."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path


def holders_of(lock: os.stat_result) -> list[int]:
    """Return the processes that hold the lock of a file, but for this one; nobody where that cannot be known."""
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # "1: FLOCK ADVISORY WRITE 4711 fd:01:131074 0 EOF"; a waiting one has an arrow in its second field.
        pids = {int(w[4]) for w in lines if w[1] == "FLOCK" and w[5].rpartition(":")[2] == str(lock.st_ino)}
        return [pid for pid in pids if pid > 0 and pid != os.getpid() and _has_open(pid, lock)]
    return []


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Tell whether a process has this very file open: another filesystem may have one of the same number."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    return True
    return False


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal or by who debugs it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False


def own_process() -> str:
    """Return what names this process among all of one boot; empty where that cannot be known."""
    return _named(os.getpid())


@cache
def _named(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}:{_started(pid)}:{os.readlink('/proc/self/ns/pid')}"
    return ""


def has_ended(process: str) -> bool:
    """Tell whether a process is gone for sure; one of another namespace cannot be seen."""
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
    """Return when a process has started, or nothing where it has ended and only its parent does not know yet."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]
