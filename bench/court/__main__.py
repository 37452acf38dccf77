"""`python -m bench.court`: exits 0 only if every bound holds. The last line has the figures as JSON."""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.court import growth, polling
from bench.court.burst import measure_burst
from bench.court.court_processes import CourtProcesses, opened
from bench.court.latency import AT_MOST_MS, begin, measure_latency
from bench.court.system import BACKENDS, place
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm
from kingdom.log_output import configure_logs

PARTS = ("latency", "burst", "growth")
LOSE_EVENTS = "lose_events"
# Broken variants, and the part whose bound must detect each.
VARIANTS = {polling.POLLS: "latency", LOSE_EVENTS: "burst", growth.SCAN: "growth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    requests: int
    burst: int
    counted_events: int
    stored_in_database: tuple[int, ...]
    stored_in_files: tuple[int, ...]


DEFAULT = Scale(
    requests=20,
    burst=500,
    counted_events=50,
    stored_in_database=(1_000, 100_000),
    stored_in_files=(1_000, 10_000),
)
FULL = Scale(
    requests=20,
    burst=500,
    counted_events=50,
    stored_in_database=(1_000, 100_000, 1_000_000),
    stored_in_files=(1_000, 100_000),
)
QUICK = Scale(requests=2, burst=20, counted_events=10, stored_in_database=(1_000, 4_000), stored_in_files=(20, 300))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.ERROR)
    started = time.monotonic()
    found = {backend: _measure(backend, options) for backend in ([options.backend] if options.backend else BACKENDS)}
    complaints = {f"{backend}: {words}" for backend, figures in found.items() for words in figures.complaints()}
    for backend, figures in found.items():
        Console(width=120).print(figures.table(f"the court on {backend}"))
    for words in sorted(complaints):
        print(f"bound not kept: {words}", file=sys.stderr)
    result = {
        "bench": "court",
        "seconds": round(time.monotonic() - started),
        "holds": not complaints,
        "backends": {backend: figures.to_json(bench="court") for backend, figures in found.items()},
    }
    if options.json == "-":
        print(json.dumps(result))
    else:
        Path(options.json).write_text(json.dumps(result) + "\n")
    return 1 if complaints else 0


def _measure(backend: str, options: argparse.Namespace) -> Figures:
    scale, figures = _scale(options), Figures(options.demand or 1.0)
    parts = options.only or ([VARIANTS[options.variant]] if options.variant else PARTS)
    # The times of a quick run on a busy machine say little, so they have a bound only on request.
    bounded = not options.quick or options.demand is not None or options.variant == polling.POLLS
    say = partial(print, f"{backend}:", file=sys.stderr)
    if "latency" in parts or "burst" in parts:
        with place(backend) as (url, _):
            at_most = AT_MOST_MS[backend] if bounded else None
            asyncio.run(_measure_court(url, figures, scale, parts, at_most, options.variant, say))
    if "growth" in parts:
        say(f"growth up to {max(_stored(backend, scale)):,} stored events")
        _measure_growth(backend, figures, scale, options.variant)
    return figures


async def _measure_court(
    url: str,
    figures: Figures,
    scale: Scale,
    parts: Sequence[str],
    at_most_ms: float | None,
    variant: str | None,
    say: Callable[[str], None],
) -> None:
    with tempfile.TemporaryDirectory(prefix="kingdom-bench-") as directory:
        async with opened(Path(directory), url) as court:
            _break(court, variant)
            await begin(court)
            if "latency" in parts:
                say(f"{scale.requests} webhooks, one at a time")
                await measure_latency(court, figures, requests=scale.requests, at_most_ms=at_most_ms)
            if "burst" in parts:
                say(f"{scale.burst} webhooks at once, and again")
                await measure_burst(court, figures, count=scale.burst)


def _measure_growth(backend: str, figures: Figures, scale: Scale, variant: str | None) -> None:
    stored, events, scans = _stored(backend, scale), scale.counted_events, variant == growth.SCAN
    if backend == "files":
        with tempfile.TemporaryDirectory(prefix="kingdom-bench-") as directory:
            here = Path(directory)
            asyncio.run(growth.measure_files(here, figures, stored=stored, events=events, scans=scans))
        return
    with PrivateCluster(shared_buffers="512MB", settings=growth.SERVER_SETTINGS) as cluster:
        asyncio.run(growth.measure_database(cluster, figures, stored=stored, events=events, scans=scans))


def _break(court: CourtProcesses, variant: str | None) -> None:
    if variant == polling.POLLS:
        polling.ignore_wakeups(court)
    elif variant == LOSE_EVENTS:
        court.break_role("sentinel", LOSE_EVENTS)


def _stored(backend: str, scale: Scale) -> tuple[int, ...]:
    return scale.stored_in_files if backend == "files" else scale.stored_in_database


def _scale(options: argparse.Namespace) -> Scale:
    chosen = QUICK if options.quick else FULL if options.full else DEFAULT
    return Scale(
        requests=options.requests or chosen.requests,
        burst=options.burst or chosen.burst,
        counted_events=chosen.counted_events,
        stored_in_database=chosen.stored_in_database,
        stored_in_files=chosen.stored_in_files,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.court", description=sys.modules["bench.court"].__doc__)
    parser.add_argument("--backend", choices=BACKENDS, help="use only this backend (default: each)")
    parser.add_argument("--requests", type=int, help=f"the number of single webhooks (default {DEFAULT.requests})")
    parser.add_argument("--burst", type=int, help=f"the number of concurrent webhooks (default {DEFAULT.burst})")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="also measure 1,000,000 stored events, 100,000 on files")
    size.add_argument("--quick", action="store_true", help="use small sizes and no bound on time")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this; can be repeated")
    parser.add_argument("--demand", type=float, help="how strict the bounds are; below 1 is less strict")
    parser.add_argument("--variant", choices=VARIANTS, help="use a broken court, which a bound must detect")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
