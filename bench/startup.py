"""Processor time until a role is ready, and its memory: `python -m bench.startup` exits 0 only if both bounds hold.

The processor time is given as a multiple of that of `python -c 'import aiohttp, msgspec'` in the same run, because a
role cannot start faster than the libraries that it needs. The memory is measured while all roles run. It is what a role
adds to the machine (PSS): pages that several roles share are divided among them.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.files.figures import Figures
from bench.servers import PATIENCE_SECONDS, exit_on_sigterm

ROLES = ("sentinel", "king", "general", "soldiers", "envoy", "chamberlain")
# The bounds: processor time until ready as a multiple of the imports, and MiB of the largest role.
START_LIMIT = 3.5
MEMORY_LIMIT_MIB = 60.0
_IMPORTS = "import aiohttp, msgspec"
_READY = '"role started"'
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Start:
    """How long a process took until it was ready, by the clock and by its processor time."""

    seconds: float
    processor_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    figures = Figures(options.demand)
    with tempfile.TemporaryDirectory(prefix="kingdom-bench-") as directory:
        realm = Path(directory) / "realm"
        subprocess.run(_kingdom("init", str(realm), "--yes"), check=True, stdout=subprocess.DEVNULL)
        starts: dict[str, list[Start]] = {}
        for _ in range(options.rounds):
            starts.setdefault(_IMPORTS, []).append(_measure_imports())
            for role in ROLES:
                with _running(role, realm) as (_, start):
                    starts.setdefault(role, []).append(start)
        memory = _memory_together(realm)
    imports = _median(starts.pop(_IMPORTS))
    ready = {role: _median(of_role) for role, of_role in starts.items()}
    slowest = max(each.processor_seconds for each in ready.values())
    figures.note(
        "processor time until ready, as a multiple of the imports",
        slowest / imports.processor_seconds,
        at_most=START_LIMIT,
    )
    figures.note("MiB of the largest role", max(memory.values()), at_most=MEMORY_LIMIT_MIB)
    figures.note("MiB of all six roles", sum(memory.values()))
    figures.facts["imports"] = {
        "seconds": round(imports.seconds, 2),
        "processorSeconds": round(imports.processor_seconds, 2),
    }
    figures.facts["roles"] = {
        role: {
            "seconds": round(start.seconds, 2),
            "processorSeconds": round(start.processor_seconds, 2),
            "multiple": round(start.processor_seconds / imports.processor_seconds, 2),
            "mebibytes": round(memory[role], 1),
        }
        for role, start in ready.items()
    }
    for complaint in figures.complaints():
        print(f"bound not kept: {complaint}", file=sys.stderr)
    line = json.dumps({**figures.to_json(), "bench": "startup"})
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if figures.complaints() else 0


def _measure_imports() -> Start:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(time.monotonic() - began, used)


@contextmanager
def _running(role: str, realm: Path) -> Iterator[tuple[psutil.Process, Start]]:
    """Start a role, yield its process and its start when it is ready, and stop it."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(_kingdom("role", role, "--json-logs"), cwd=realm, stderr=log)
        try:
            while _READY not in Path(log.name).read_text():
                if process.poll() is not None or time.monotonic() > began + PATIENCE_SECONDS:
                    raise RuntimeError(f"the role {role} does not start: {Path(log.name).read_text()[-2000:]}")
                time.sleep(_POLL_SECONDS)
            running = psutil.Process(process.pid)
            times = running.cpu_times()
            yield running, Start(time.monotonic() - began, times.user + times.system)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def _memory_together(realm: Path) -> dict[str, float]:
    """Return the MiB of each role while all roles run."""
    with ExitStack() as stack:
        running = {role: stack.enter_context(_running(role, realm))[0] for role in ROLES}
        return {role: process.memory_full_info().pss / 2**20 for role, process in running.items()}


def _median(starts: Sequence[Start]) -> Start:
    return Start(
        statistics.median(start.seconds for start in starts),
        statistics.median(start.processor_seconds for start in starts),
    )


def _kingdom(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kingdom", *arguments]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__)
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each role is started (default 3)")
    parser.add_argument("--demand", type=float, default=1.0, help="how strict the bounds are; below 1 is less strict")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
