"""`python -m bench.chaos`: exits 0 only if there is no finding and every broken variant is detected."""

import argparse
import asyncio
import json
import logging
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chaos.backends import BACKENDS, BROKER_COUNTS, TRANSPORTS, PrivateStore, private_cluster_and_brokers
from bench.chaos.process import AS_IT_IS
from bench.chaos.scenarios import CARRIED, SCENARIOS, process_command
from bench.chaos.scenarios_kafka import KAFKA_SCENARIOS
from bench.court.system import run as run_system
from bench.court.variants import VARIANTS as COURT_VARIANTS
from bench.servers import exit_on_sigterm
from kingdom.errors import KingdomError
from kingdom.log_output import configure_logs
from kingdom.verify import TrialPlan, TrialReport
from kingdom.verify.trial import run_trial

# A trial must have at least this many faults per second, and this many kinds of faults.
FAULTS_PER_SECOND = 5 / 3
FAULT_KINDS = 9
# A short run has only faults of processes, not of their environment.
_FAULTS_PER_SECOND_IN_SHORT = 1.0
FAULT_KINDS_IN_SHORT = 3
_SHORT_SECONDS = 30
FAULT_KINDS_ON_KAFKA = 6
LOCK_HOLDER_STOPPED = "lock_holder_stopped"
# A trial on files must stop the holder of the lock at least once in this time.
_SECONDS_PER_STOP = 30
_FAULT_EVERY = timedelta(milliseconds=400)
# With Kafka, each fault lasts longer: a consumer group or a broker needs seconds to recover.
FAULTS_PER_SECOND_ON_KAFKA = 2 / 3
_FAULT_EVERY_ON_KAFKA = timedelta(milliseconds=1200)
# A broken variant may never finish.
_DRAIN, _DRAIN_OF_VARIANT = timedelta(minutes=5), timedelta(seconds=30)
_PAUSE, _PAUSE_ON_KAFKA = timedelta(milliseconds=30), timedelta(milliseconds=300)
# Long enough that no healthy event loses three leases, even on a shared machine.
_LEASE = timedelta(seconds=5)
# Enough events in one transaction to use the bulk path of the store.
_FLOOD_EVENTS = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject faults, check the history and report."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.ERROR)
    if options.system:
        return run_system(options)
    options.backend = options.transport or options.backend or "postgres"
    opening = private_cluster_and_brokers(options.brokers) if options.transport else BACKENDS[options.backend].place()
    with opening as place:
        report = asyncio.run(run_trial(place.url, _plan(options, place), _empty(options.keep)))
        caught = {} if options.variant or options.no_variants else _catch_variants(place, options.backend)
        deadlocks = place.deadlocks()
    complaints = [
        *_complaints(report, options),
        *(f"not caught: {v}" for v, found in caught.items() if not found),
    ]
    _show(report, caught, complaints)
    figures = json.dumps(_figures(report, caught, deadlocks=deadlocks, ok=not complaints))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


def _is_long(options: argparse.Namespace) -> bool:
    return bool(options.seconds >= _SHORT_SECONDS)


def _plan(options: argparse.Namespace, place: PrivateStore) -> TrialPlan:
    long, carries = _is_long(options), bool(place.kafka_servers)
    command = process_command(options.backend, options.variant or AS_IT_IS)
    return TrialPlan(
        seconds=options.seconds,
        seed=options.seed,
        workers=3 if carries else 4,
        publishers=2,
        lease=_LEASE,
        fault_every=_FAULT_EVERY_ON_KAFKA if carries else _FAULT_EVERY,
        extra_faults=place.faults if long or carries else (),
        kafka_servers=place.kafka_servers,
        carried=CARRIED if carries else (),
        couriers=2 if carries else 0,
        enough=lambda faults: not list(_missing(faults, options)),
        drain=_DRAIN_OF_VARIANT if options.variant and carries else _DRAIN,
        pause=_PAUSE_ON_KAFKA if carries else _PAUSE,
        # A poison event needs three leases until it is dead, which takes too long for a short trial.
        poisons=2 if long else 0,
        flood=_FLOOD_EVENTS if long else 0,
        command=(*command, str(place.controls.path)) if long or carries else command,
    )


def _catch_variants(place: PrivateStore, backend: str) -> dict[str, bool]:
    """Run the scripted trial of every broken variant; True if the checker found the expected violation."""
    caught = {}
    for scenario in (*SCENARIOS, *KAFKA_SCENARIOS):
        if backend in scenario.backends:
            try:
                report = asyncio.run(scenario.run(place.url, backend, broken=True, kafka_servers=place.kafka_servers))
                caught[scenario.variant] = report.violations_by_kind[scenario.expects.value] > 0
            except (KingdomError, TimeoutError) as error:
                print(f"{scenario.variant} did not run to its end: {error!r}", file=sys.stderr)
                caught[scenario.variant] = False
    return caught


def _complaints(report: TrialReport, options: argparse.Namespace) -> Iterator[str]:
    for violation in report.violations[:20]:
        yield f"{violation.kind.value}: {violation.subject}: {violation.detail}"
    yield from _missing(report.faults_by_kind, options)


def _missing(faults: Mapping[str, int], options: argparse.Namespace) -> Iterator[str]:
    """Describe the faults that have not happened often enough."""
    seconds, stops = options.seconds, faults.get(LOCK_HOLDER_STOPPED, 0)
    per_second, kinds = FAULTS_PER_SECOND, FAULT_KINDS
    if not _is_long(options):
        per_second, kinds = _FAULTS_PER_SECOND_IN_SHORT, FAULT_KINDS_IN_SHORT
    if options.transport:
        per_second, kinds = FAULTS_PER_SECOND_ON_KAFKA, FAULT_KINDS_ON_KAFKA if _is_long(options) else kinds
    if sum(faults.values()) < per_second * seconds:
        yield f"only {sum(faults.values())} faults in {seconds:g} s"
    if len(faults) < kinds:
        yield f"only {len(faults)} kinds of fault"
    if options.backend == "files" and stops < max(1, seconds // _SECONDS_PER_STOP):
        yield f"the holder of the lock was stopped only {stops} times"


def _show(report: TrialReport, caught: dict[str, bool], complaints: list[str]) -> None:
    console = Console()
    table = Table("what", "count", title=f"chaos, seed {report.seed}: {report.seconds:.0f} s")
    parts = {"event": report.statuses, "action": report.actions, "fault": report.faults_by_kind}
    for name, counts in {**parts, "found": report.violations_by_kind}.items():
        for what, count in counts.items():
            table.add_row(f"{name}: {what}", str(count))
        table.add_section()
    for variant, found in caught.items():
        table.add_row(f"variant: {variant}", "caught" if found else "NOT CAUGHT")
    console.print(table)
    for words in complaints:
        console.print(words, style="red", markup=False)


def _figures(report: TrialReport, caught: dict[str, bool], *, deadlocks: int, ok: bool) -> dict[str, Any]:
    return {
        "ok": ok,
        "seed": report.seed,
        "seconds": round(report.seconds, 1),
        "drained_seconds": round(report.drained_seconds, 1),
        "events": dict(report.statuses),
        "actions": dict(report.actions),
        "faults": len(report.faults),
        "faults_by_kind": report.faults_by_kind,
        "findings": report.violations_by_kind,
        "details": [f"{f.kind.value}: {f.subject}: {f.detail}" for f in report.violations[:20]],
        "deadlocks": deadlocks,
        "variants_caught": caught,
    }


def _empty(directory: Path | None) -> Path | None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    return directory


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=sys.modules["bench.chaos"].__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults (default 60)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(32), help="the seed of an earlier run, to repeat it"
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="the backend of the bus (default postgres, with --system both)"
    )
    parser.add_argument(
        "--transport", choices=TRANSPORTS, help="with the backend postgres: carry some streams by this transport"
    )
    parser.add_argument(
        "--brokers", type=int, choices=BROKER_COUNTS, default=max(BROKER_COUNTS), help="how many brokers (default 3)"
    )
    parser.add_argument("--system", action="store_true", help="kill the roles and the environment of a whole court")
    parser.add_argument("--events", type=int, default=200, help="with --system: the number of events (default 200)")
    parser.add_argument(
        "--drain", type=float, default=600.0, help="with --system: the seconds to finish after the faults (default 600)"
    )
    backends = {**BACKENDS, **TRANSPORTS}
    variants = sorted({variant for backend in backends.values() for variant in backend.variants} | set(COURT_VARIANTS))
    parser.add_argument("--variant", choices=variants, help="inject faults into a broken variant of the bus")
    parser.add_argument("--no-variants", action="store_true", help="skip the scripted trials of the variants")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the history in this directory")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    options = parser.parse_args(arguments)
    if options.transport and (options.system or options.backend not in (None, "postgres")):
        parser.error("a transport carries streams of the bus on PostgreSQL only")
    backend = options.transport or options.backend or "postgres"
    known = COURT_VARIANTS if options.system else backends[backend].variants
    if options.variant not in (None, *known):
        parser.error(f"there is no variant {options.variant} of {'the court' if options.system else backend}")
    return options


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
