"""`python -m bench.growth`: exits 0 only if every bound holds. The last line has the figures as JSON."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bench.growth.lab import DEFAULT, FULL, QUICK, Lab, Scale
from bench.growth.report import draw_plot, print_table
from bench.growth.scenarios import SCENARIOS
from bench.growth.variants import VARIANTS
from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm

PLOT = Path("bench/out/growth.png")
# Only scenarios vacuum dead rows, so that it never happens during a measurement.
SETTINGS = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    started = time.monotonic()
    with (
        PrivateCluster(shared_buffers="512MB", settings=SETTINGS) as cluster,
        Progress(console=Console(stderr=True)) as progress,
    ):
        lab = Lab(cluster, _scale(options), variant=VARIANTS.get(options.variant), say=progress.console.print)
        lab.prepare()
        for name in progress.track(options.only or list(SCENARIOS), description="growth"):
            asyncio.run(SCENARIOS[name](lab))
    print_table(lab.figures)
    draw_plot(lab.figures, options.plot)
    complaints = lab.figures.complaints()
    for words in complaints:
        print(f"bound not kept: {words}", file=sys.stderr)
    figures = json.dumps(lab.figures.to_json(plot=str(options.plot), seconds=round(time.monotonic() - started)))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=sys.modules["bench.growth"].__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="also measure 10,000,000 pending events")
    size.add_argument("--quick", action="store_true", help="use small sizes, to try the bench itself")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--plot", type=Path, default=PLOT, help=f"the file for the plot (default {PLOT})")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="run this scenario; can be repeated")
    parser.add_argument("--variant", choices=VARIANTS, help="use a broken statement, which a bound must detect")
    return parser.parse_args(arguments)


def _scale(options: argparse.Namespace) -> Scale:
    if options.quick:
        return QUICK
    return FULL if options.full else DEFAULT


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
