"""Count system calls with strace; `python -m bench.files.claims ROOT CLAIMS [VARIANT]` is the traced process."""

import asyncio
import ctypes
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.files.figures import CLAIM_GROWTH, SYNCS_OF_A_PUBLISH, Figures
from bench.files.load import GROUP, STREAM, some_events
from bench.files.variants import make_bus

_FILL = 1000
_MARK = "/kingdom-bench-mark"
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = ctypes.c_ulong(-1)


async def measure_claims(
    directory: Path, figures: Figures, *, pending: tuple[int, int], claims: int, variant: str | None
) -> None:
    """Count the calls of one claim with few and with many pending events, and the syncs of a publish."""
    if shutil.which("strace") is None:
        raise SystemExit(
            "strace is not installed, and nothing else counts system calls: install it, or leave out claims"
        )
    counts, syncs = [], 0
    for size in pending:
        root = directory / f"pending-{size}"
        async with make_bus(root) as bus:
            for start in range(0, size, _FILL):
                await bus.publish(*some_events(min(_FILL, size - start)))
        log, cold_seconds = await asyncio.to_thread(_trace, root, claims, variant)
        *calls, _ = calls_between_marks(log)
        *_, syncs = calls_between_marks(log, _SYNCS)
        counts.append(statistics.median(calls))
        figures.note(f"system calls of a claim at {size} pending", counts[-1])
        figures.note(f"seconds of a cold open and its first claim at {size} pending", cold_seconds)
    figures.note("system calls of a claim, growth", counts[1] / counts[0], at_most=CLAIM_GROWTH)
    # On a fast disk, a ratio of times would hide an extra sync. A count does not.
    figures.note(f"syncs of a publish of {GROUP} events", syncs, at_most=SYNCS_OF_A_PUBLISH)


def _trace(root: Path, claims: int, variant: str | None) -> tuple[str, float]:
    """Return the calls of some claims and one publish, and the time of the first claim of a new process."""
    command = [sys.executable, "-m", "bench.files.claims", str(root), str(claims), *([variant] if variant else [])]
    log = root.with_suffix(".strace")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as claimer:
        assert claimer.stdin
        assert claimer.stdout
        cold_seconds = float(claimer.stdout.readline())
        tracing = ["strace", "-f", "-p", str(claimer.pid), "-o", str(log)]
        with subprocess.Popen(tracing, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr
            first_line = tracer.stderr.readline()
            if "attached" not in first_line:
                claimer.kill()
                raise SystemExit(
                    f"strace cannot attach to a process here, so calls cannot be counted: {first_line.strip()}"
                )
            claimer.stdin.write("go\n")
            claimer.stdin.close()
            claimer.wait()
            tracer.wait()
    return log.read_text(errors="replace"), cold_seconds


# Matches a line such as "4711 openat(AT_FDCWD, …", but not the line of a resumed call, which is not a new call. Calls
# of futex are not counted: the scheduler decides how often two threads of Python wait for each other.
_CALLS = re.compile(r"\d+ +(?!futex\()[a-z_0-9]+\(")
_SYNCS = re.compile(r"\d+ +(fsync|fdatasync|syncfs|sync|msync|sync_file_range)\(")


def calls_between_marks(log: str, which: re.Pattern[str] = _CALLS) -> list[int]:
    """Return how many calls began between every odd mark and the next mark."""
    counts, count, inside = [], 0, False
    for line in log.splitlines():
        if _MARK in line:
            if inside:
                counts.append(count)
            inside, count = not inside, 0
        elif inside and which.match(line):
            count += 1
    return counts


async def _claim(root: Path, claims: int, variant: str | None) -> None:
    started = time.perf_counter()
    async with make_bus(root, variant) as bus:
        assert await bus.claim(STREAM, 1, "bench")
        print(time.perf_counter() - started, flush=True)
        for _ in range(3):
            await bus.claim(STREAM, 1, "bench")
        sys.stdin.readline()
        for _ in range(claims):
            os.access(_MARK, os.F_OK)
            found = await bus.claim(STREAM, 1, "bench")
            os.access(_MARK, os.F_OK)
            assert found
        events = some_events(GROUP)
        os.access(_MARK, os.F_OK)
        await bus.publish(*events)
        os.access(_MARK, os.F_OK)


if __name__ == "__main__":
    with suppress(AttributeError):
        # Some kernels let only a parent trace a process, but strace is a sibling of this process.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
    asyncio.run(_claim(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
