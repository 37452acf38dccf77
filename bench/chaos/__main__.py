"""`python -m bench.chaos`: exits 0 only where nothing went wrong and every broken variant was caught."""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chaos.scenarios import BROKEN_COMMAND, SCENARIOS
from bench.chaos.variants import VARIANTS
from bench.postgres import PrivateCluster
from kingdom.verify import Plan, Report
from kingdom.verify.fleet import COMMAND
from kingdom.verify.trial import torment

# The bounds: faults per second of torment, and their kinds.
FAULTS_PER_SECOND = 1.0
FAULT_KINDS = 3
_FAULT_EVERY = timedelta(milliseconds=500)
# Enough for the store's way of taking many at once.
_FLOOD_EVENTS = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Torment, judge, report."""
    options = _parse(arguments)
    with PrivateCluster() as cluster:
        dsn = cluster.create_database("chaos")
        report = asyncio.run(torment(dsn, _plan(options), _emptied(options.keep)))
        caught = {} if options.variant or options.no_variants else _catch_variants(dsn)
        words = cluster.log_path.read_text() if cluster.log_path else ""
    complaints = [
        *_complaints(report, options.seconds),
        *(f"not caught: {v}" for v, found in caught.items() if not found),
    ]
    _show(report, caught, complaints)
    figures = json.dumps(_figures(report, caught, deadlocks=words.count("deadlock detected"), ok=not complaints))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


def _plan(options: argparse.Namespace) -> Plan:
    long = options.seconds >= 30
    return Plan(
        seconds=options.seconds,
        seed=options.seed,
        workers=4,
        publishers=2,
        fault_every=_FAULT_EVERY,
        pause=timedelta(milliseconds=30),
        poisons=2 if long else 1,
        flood=_FLOOD_EVENTS if long else 0,
        command=(*BROKEN_COMMAND, options.variant) if options.variant else COMMAND,
    )


def _catch_variants(dsn: str) -> dict[str, bool]:
    """Show every broken variant its scripted trial; True where the checker found what it must find."""
    caught = {}
    for scenario in SCENARIOS:
        report = asyncio.run(scenario.run(dsn, broken=True))
        caught[scenario.variant] = report.findings_by_kind[scenario.expects.value] > 0
    return caught


def _complaints(report: Report, seconds: float) -> Iterator[str]:
    for finding in report.findings[:20]:
        yield f"{finding.kind.value}: {finding.subject}: {finding.detail}"
    if len(report.faults) < FAULTS_PER_SECOND * seconds:
        yield f"only {len(report.faults)} faults in {seconds:g} s"
    if len(report.faults_by_kind) < FAULT_KINDS:
        yield f"only {len(report.faults_by_kind)} kinds of fault"


def _show(report: Report, caught: dict[str, bool], complaints: list[str]) -> None:
    console = Console()
    table = Table("what", "count", title=f"chaos, seed {report.seed}: {report.seconds:.0f} s")
    parts = {"event": report.statuses, "action": report.actions, "fault": report.faults_by_kind}
    for name, counts in {**parts, "found": report.findings_by_kind}.items():
        for what, count in counts.items():
            table.add_row(f"{name}: {what}", str(count))
        table.add_section()
    for variant, found in caught.items():
        table.add_row(f"variant: {variant}", "caught" if found else "NOT CAUGHT")
    console.print(table)
    for words in complaints:
        console.print(words, style="red", markup=False)


def _figures(report: Report, caught: dict[str, bool], *, deadlocks: int, ok: bool) -> dict[str, Any]:
    return {**report.to_json(), "ok": ok, "deadlocks": deadlocks, "variants_caught": caught}


def _emptied(directory: Path | None) -> Path | None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    return directory


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=sys.modules["bench.chaos"].__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the nemesis strikes (default 60)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="repeat the choices of an earlier run")
    parser.add_argument("--backend", choices=["postgres"], default="postgres", help="where the bus is kept")
    parser.add_argument("--variant", choices=VARIANTS, help="torment a bus that is broken on purpose")
    parser.add_argument("--no-variants", action="store_true", help="leave out the scripted trials of the variants")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the history there")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="where the figures go; - is the last line (default)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
