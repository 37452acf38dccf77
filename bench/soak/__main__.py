"""`python -m bench.soak`: exits 0 only if rate and sizes stay constant. The last line has the figures as JSON."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm
from bench.soak.minutes import Minute, complaints
from bench.soak.run import Soak
from kingdom.backends.postgres import migrate

PINNED_MINUTE = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load, measure, report and check the bounds."""
    options = _parse(arguments)
    count = round(options.seconds / options.minute)
    # Vacuum must run several times per minute, so that the sizes of minutes are comparable.
    settings = {"autovacuum_naptime": f"{max(round(options.minute / 6), 1)}s"}
    if options.without_vacuum:
        settings = {"autovacuum": "off"}
    with (
        PrivateCluster(fsync=True, settings=settings) as cluster,
        Progress(console=Console(stderr=True)) as progress,
    ):
        dsn = cluster.create_database("soak")
        asyncio.run(migrate(dsn))
        task = progress.add_task("soak", total=count)
        minutes = []
        with Soak(dsn, cluster.pid) as soak:
            for number in range(1, count + 1):
                minutes.append(soak.minute(number, options.minute, pinned=number == PINNED_MINUTE))
                progress.console.print(f"minute {number}: {minutes[-1].rate:,.0f} events a second")
                progress.advance(task)
            published, archived = soak.drain()
    words = complaints(minutes, noise=options.noise)
    if published != archived:
        words.append(f"{published:,} events were published, {archived:,} are done")
    _print_table(minutes)
    for complaint in words:
        print(f"not flat: {complaint}", file=sys.stderr)
    figures = json.dumps(_figures(minutes, published=published, archived=archived, failed=words))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if words else 0


def _figures(minutes: Sequence[Minute], **facts: object) -> dict[str, object]:
    return {
        "bench": "soak",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "minutes": [minute.to_json() for minute in minutes],
        **facts,
        "holds": not facts["failed"],
    }


def _print_table(minutes: Sequence[Minute]) -> None:
    table = Table(title="Rate, cost, mean sizes in MB, and dead rows at the end of each minute")
    table.add_column("")
    for minute in minutes:
        table.add_column(f"{minute.number}{' (pinned)' if minute.pinned else ''}", justify="right")
    table.add_row("events/s", *(f"{minute.rate:,.0f}" for minute in minutes))
    table.add_row("server µs/event", *(f"{minute.server_microseconds:,.0f}" for minute in minutes))
    for relation in minutes[0].sizes:
        table.add_row(relation, *(f"{minute.sizes[relation] / 1e6:,.1f}" for minute in minutes))
    for relation in minutes[0].dead:
        table.add_row(f"dead rows: {relation}", *(f"{minute.dead[relation]:,}" for minute in minutes))
    Console(width=160).print(table)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=sys.modules["bench.soak"].__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to run (default 600)")
    parser.add_argument(
        "--minute", type=float, default=60.0, help="how long a measured minute is, in seconds (default 60)"
    )
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    parser.add_argument("--noise", type=float, default=1.0, help="widen the bounds, for short runs on a busy machine")
    parser.add_argument(
        "--without-vacuum", action="store_true", help="let dead rows accumulate, which the bench must detect"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
