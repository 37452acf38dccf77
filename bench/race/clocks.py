"""The processor time of servers, from /proc."""

import contextlib
from pathlib import Path

import psutil


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its children, including children that have ended.

    A child that ends while this runs may be missed, but is never counted twice.
    """
    server = psutil.Process(pid)
    times = server.cpu_times()
    ended = times.children_user + times.children_system
    return ended + sum(_running_seconds(process) for process in [server, *server.children(recursive=True)])


def _running_seconds(process: psutil.Process) -> float:
    """Return the processor seconds of all threads: to the nanosecond if the kernel counts those, else to its tick."""
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        threads = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
        if threads:
            return sum(int(words.split()[0]) for words in threads) / 1e9
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
