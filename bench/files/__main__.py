"""`python -m bench.files`: exits 0 only if every bound holds. The last line has the figures as JSON."""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.files.claims import measure_claims
from bench.files.figures import Figures
from bench.files.load import GROUP
from bench.files.speed import measure_speed
from bench.files.variants import VARIANTS
from bench.files.wakeups import measure_wake_ups
from bench.servers import exit_on_sigterm
from kingdom.log_output import configure_logs

PARTS = ("speed", "claims", "wake-ups")


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a run."""

    rounds: int
    singles: int
    groups: int
    pending: tuple[int, int]
    claims: int
    wake_ups: int


FULL = Scale(rounds=12, singles=100, groups=8, pending=(1_000, 100_000), claims=51, wake_ups=200)
QUICK = Scale(rounds=3, singles=40, groups=4, pending=(1_000, 10_000), claims=21, wake_ups=21)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.ERROR)
    started, figures = time.monotonic(), Figures(options.demand)
    with tempfile.TemporaryDirectory(prefix="kingdom-bench-", dir=options.directory) as directory:
        asyncio.run(_measure(Path(directory), options, figures))
    _show(figures)
    complaints = figures.complaints()
    for words in complaints:
        print(f"bound not kept: {words}", file=sys.stderr)
    line = json.dumps(figures.to_json(seconds=round(time.monotonic() - started)))
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if complaints else 0


async def _measure(directory: Path, options: argparse.Namespace, figures: Figures) -> None:
    scale: Scale = QUICK if options.quick else FULL
    for part in options.only or PARTS:
        here = directory / part
        here.mkdir()
        match part:
            case "speed":
                sizes = [1] * scale.singles + [GROUP] * scale.groups
                await measure_speed(
                    here,
                    figures,
                    rounds=scale.rounds,
                    sizes=sizes,
                    strict=options.strict,
                    variant=options.variant,
                )
            case "claims":
                await measure_claims(here, figures, pending=scale.pending, claims=scale.claims, variant=options.variant)
            case _:
                await measure_wake_ups(here, figures, samples=scale.wake_ups, variant=options.variant)


def _show(figures: Figures) -> None:
    table = figures.table("the bus on files")
    table.add_section()
    for who, rates in figures.facts.get("events per second", {}).items():
        table.add_row(who, "  ".join(f"{phase}: {rate:,}/s" for phase, rate in rates.items()))
    Console(width=140).print(table)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=sys.modules["bench.files"].__doc__)
    parser.add_argument("--quick", action="store_true", help="use small sizes, to try the bench itself")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--directory", type=Path, metavar="DIRECTORY", help="the disk to use (default: TMPDIR)")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this; can be repeated")
    parser.add_argument(
        "--strict", action="store_true", help="also compare a single publish with the loop that blocks its caller"
    )
    parser.add_argument("--demand", type=float, default=1.0, help="how strict the bounds are; below 1 is less strict")
    parser.add_argument("--variant", choices=VARIANTS, help="use a broken bus, which a bound must detect")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
