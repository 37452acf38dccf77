"""Measure the cost of an event while ended events accumulate in the store.

On PostgreSQL the bench counts the statements, rows and buffers that the server reports. On files it counts system
calls: strace traces the process `python -m bench.court.growth ROOT EVENTS [scan]`.
"""

import asyncio
import ctypes
import logging
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from bench.court.course import CLOCK, Course
from bench.court.stored import fill_database, fill_files, lookup_buffers
from bench.explain import ExplainedBus, Plan
from bench.files.claims import calls_between_marks
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from kingdom.bootstrap import migrate, open_bus
from kingdom.bus.effects.ledger import EFFECTS
from kingdom.bus.sequence import SEQUENCES
from kingdom.log_output import configure_logs
from kingdom.realm import Realm
from kingdom.roles import declare_application

# The bound: the cost with many stored events, relative to the cost with few.
GROWTH_LIMIT = 1.25
# The bench vacuums before a measurement, so the server never does it during one.
SERVER_SETTINGS = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
SCAN = "scan"
STATEMENTS, ROWS, BUFFERS = "statements", "rows", "buffers"
COUNTED = (STATEMENTS, ROWS, BUFFERS)
_TEMPLATE = "court_template"
_MARK = "/kingdom-bench-mark"
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = ctypes.c_ulong(-1)
# These first events are not counted: the server plans their statements again, and files are read for the first time.
_WARM_UPS = 10
# One periodic check of the King per this many events.
_LOOK_EVERY = 10
# The number of the event that is copied to fill a store.
_MODEL = 1


class CountingBus(ExplainedBus):
    """Counts the statements and buffers of its blocks."""

    def __init__(self, dsn: str, lookup: int = 0) -> None:
        application = declare_application(Realm())
        super().__init__(dsn, application.topology, [EFFECTS, SEQUENCES, *application.kinds], connections=2)
        self.lookup = lookup
        self.counts: dict[str, Counter[str]] = {what: Counter() for what in COUNTED}
        self.by_name: dict[str, Counter[str]] = {what: Counter() for what in COUNTED}

    @contextmanager
    def counting(self, step: str) -> Iterator[None]:
        """Count the statements of this block."""
        self.take()
        yield
        for plan in self.take():
            for what, count in zip(COUNTED, (1, rows_of(plan), plan.buffers), strict=True):
                self.counts[what][step] += count
                self.by_name[what][f"{step}: {plan.name or 'other'}"] += count


def rows_of(plan: Plan) -> int:
    """Return how many rows a statement has read, including rows that it did not use."""
    seen = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    scans = [node for node in plan.nodes() if "Relation Name" in node and "Scan" in node["Node Type"]]
    return int(sum(node.get(each, 0) * node["Actual Loops"] for node in scans for each in seen))


async def measure_database(
    cluster: PrivateCluster, figures: Figures, *, stored: Sequence[int], events: int, scans: bool
) -> None:
    """Record the cost of an event at every size, relative to the smallest size."""
    dsn = cluster.create_database(_TEMPLATE)
    await migrate(dsn)
    async with CountingBus(dsn) as bus:
        await Course(bus).play(_MODEL)
    found = [(size, await _count(cluster, size, events, scans=scans)) for size in stored]
    cluster.drop_database(_TEMPLATE)
    for size, bus in found:
        figures.note(f"buffers of one lookup, {size:,} stored", bus.lookup)
    lookups = [bus.lookup for _, bus in found]
    # A deeper index costs one more page per lookup. The second ratio is for a lookup without a result: it reads only
    # pages of the index, not the page of a row.
    deeper = (max(lookups) / lookups[0], (max(lookups) - 1) / (lookups[0] - 1))
    for what in COUNTED:
        figures.facts[f"{what} of an event by name"] = {
            f"{size:,} stored": {name: round(count / events, 1) for name, count in bus.by_name[what].most_common()}
            for size, bus in found
        }
        _note(
            figures,
            what,
            [(size, bus.counts[what]) for size, bus in found],
            events,
            deeper if what == BUFFERS else (1, 1),
        )


async def measure_files(directory: Path, figures: Figures, *, stored: Sequence[int], events: int, scans: bool) -> None:
    """Record the system calls of an event at every size, relative to the smallest size."""
    if shutil.which("strace") is None:
        raise SystemExit(
            "strace is not installed, and nothing else counts system calls: install it, or leave out growth"
        )
    application = declare_application(Realm())
    found: list[tuple[int, Counter[str]]] = []
    async with open_bus(f"file:{directory / 'model'}", application.topology, application.kinds) as model:
        await Course(model).play(_MODEL)
        for size in stored:
            root = directory / f"stored-{size}"
            async with open_bus(f"file:{root}", application.topology, application.kinds) as store:
                await fill_files(model, store, size)
            found.append((size, await asyncio.to_thread(_trace, root, events, scans=scans)))
            await asyncio.to_thread(shutil.rmtree, root)
    _note(figures, "system calls", found, events)


def _note(
    figures: Figures,
    what: str,
    found: Sequence[tuple[int, Counter[str]]],
    events: int,
    deeper: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Record the cost of an event and of a periodic check. A deeper index may increase them by the ratios `deeper`."""
    clocked = [(size, counts.pop(CLOCK)) for size, counts in found]
    totals = [(size, counts.total()) for size, counts in found]
    figures.facts[f"{what} of an event by step"] = {
        f"{size:,} stored": {step: round(count / events, 1) for step, count in counts.items()} for size, counts in found
    }
    looks = max(events // _LOOK_EVERY, 1)
    parts = (("an event", totals, events, deeper[0]), ("a periodic check", clocked, looks, deeper[1]))
    for name, each, number, may_grow in parts:
        for size, total in each:
            figures.note(f"{what} of {name}, {size:,} stored", total / number)
        growth = max(total for _, total in each) / max(each[0][1], 1)
        figures.note(f"{what} of {name}, growth", growth, at_most=max(GROWTH_LIMIT, may_grow))


async def _count(cluster: PrivateCluster, size: int, events: int, *, scans: bool) -> CountingBus:
    name = f"court_{size}"
    dsn = cluster.create_database(name, template=_TEMPLATE)
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill_database(connection, size)
        lookup = lookup_buffers(connection)
    async with CountingBus(dsn, lookup) as bus:
        await _play(Course(bus, scans=scans), _WARM_UPS, first=_MODEL + 1)
        await _play(Course(bus, bus.counting, scans=scans), events, first=_MODEL + 1 + _WARM_UPS)
    cluster.drop_database(name)
    return bus


async def _play(course: Course, events: int, *, first: int) -> None:
    for number in range(first, first + events):
        await course.play(number)
    for _ in range(max(events // _LOOK_EVERY, 1)):
        await course.run_timers()


def _trace(root: Path, events: int, *, scans: bool) -> Counter[str]:
    """Return the system calls of each step, counted by strace."""
    command = [sys.executable, "-m", "bench.court.growth", str(root), str(events), *([SCAN] if scans else [])]
    log = root.with_suffix(".strace")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as player:
        assert player.stdin
        assert player.stdout
        player.stdout.readline()
        tracing = ["strace", "-f", "-p", str(player.pid), "-o", str(log)]
        with subprocess.Popen(tracing, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr
            first_line = tracer.stderr.readline()
            if "attached" not in first_line:
                player.kill()
                raise SystemExit(
                    f"strace cannot attach to a process here, so calls cannot be counted: {first_line.strip()}"
                )
            player.stdin.write("go\n")
            player.stdin.close()
            steps = player.stdout.read().splitlines()
            player.wait()
            tracer.wait()
    calls = calls_between_marks(log.read_text(errors="replace"))
    return _typical(steps, calls)


def _typical(steps: Sequence[str], calls: Sequence[int]) -> Counter[str]:
    """Return the calls of each step: the median of all events times their number, because waiting threads add calls."""
    assert len(steps) == len(calls), f"{len(steps)} steps, {len(calls)} of them seen"
    by_step: dict[str, list[int]] = {}
    for step, count in zip(steps, calls, strict=True):
        by_step.setdefault(step, []).append(count)
    return Counter({step: round(statistics.median(counts) * len(counts)) for step, counts in by_step.items()})


async def _run_traced(root: str, events: int, *, scans: bool) -> None:
    application = declare_application(Realm())
    steps: list[str] = []

    @contextmanager
    def marked(step: str) -> Iterator[None]:
        os.access(_MARK, os.F_OK)
        yield
        os.access(_MARK, os.F_OK)
        steps.append(step)

    async with open_bus(f"file:{root}", application.topology, application.kinds) as bus:
        await _play(Course(bus), _WARM_UPS, first=_MODEL + 1)
        print("ready", flush=True)
        sys.stdin.readline()
        await _play(Course(bus, marked, scans=scans), events, first=_MODEL + 1 + _WARM_UPS)
    print("\n".join(steps), flush=True)


if __name__ == "__main__":
    with suppress(AttributeError):
        # Some kernels let only a parent trace a process, but strace is a sibling of this process.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
    configure_logs(json=True, level=logging.ERROR)
    asyncio.run(_run_traced(sys.argv[1], int(sys.argv[2]), scans=SCAN in sys.argv))
