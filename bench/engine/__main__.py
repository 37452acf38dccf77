"""`python -m bench.engine`: exits 0 only if every bound holds. The last line has the figures as JSON."""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.engine.counts import SETTINGS, VARIANTS, measure_counts
from bench.engine.speed import measure_speed
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm
from kingdom.log_output import configure_logs

PARTS = ("counts", "speed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    runs: int
    rounds: int
    counted_runs: int
    stored: tuple[int, ...]


FULL = Scale(runs=1000, rounds=5, counted_runs=20, stored=(10, 1_000, 10_000))
QUICK = Scale(runs=40, rounds=1, counted_runs=4, stored=(10, 200))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.ERROR)
    started, figures = time.monotonic(), Figures(options.demand or 1.0)
    for part in options.only or PARTS:
        _measure(part, options, figures)
    Console(width=120).print(figures.table("durable steps of runs on PostgreSQL"))
    complaints = figures.complaints()
    for words in complaints:
        print(f"bound not kept: {words}", file=sys.stderr)
    line = json.dumps(figures.to_json(bench="engine", seconds=round(time.monotonic() - started)))
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if complaints else 0


def _measure(part: str, options: argparse.Namespace, figures: Figures) -> None:
    scale = QUICK if options.quick else FULL
    say = partial(print, file=sys.stderr)
    # On a busy machine, a quick run says little about speed, and timers add statements: bounds only on request.
    bounded = not options.quick or options.demand is not None
    if part == "counts":
        with PrivateCluster(shared_buffers="512MB", settings=SETTINGS) as cluster:
            counting = measure_counts(
                cluster,
                figures,
                stored=scale.stored,
                runs=scale.counted_runs,
                variant=options.variant,
                bounded=bounded,
            )
            asyncio.run(counting)
        return
    with PrivateCluster(fsync=True, shared_buffers="512MB") as cluster:
        measure_speed(
            cluster,
            figures,
            runs=options.runs or scale.runs,
            rounds=options.rounds or scale.rounds,
            with_dbos=not options.skip_dbos,
            bounded=bounded,
            say=say,
        )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=sys.modules["bench.engine"].__doc__)
    parser.add_argument("--quick", action="store_true", help="use small sizes, and bound only the growth")
    parser.add_argument("--runs", type=int, help=f"the number of concurrent runs (default {FULL.runs})")
    parser.add_argument("--rounds", type=int, help=f"the number of rounds (default {FULL.rounds})")
    parser.add_argument("--skip-dbos", action="store_true", help="measure the engine alone")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this; can be repeated")
    parser.add_argument("--demand", type=float, help="how strict the bounds are; below 1 is less strict")
    parser.add_argument("--variant", choices=VARIANTS, help="use a broken engine, which a bound must detect")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
