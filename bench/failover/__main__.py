"""`python -m bench.failover`: exits 0 only if every guarantee holds and failovers are fast enough."""

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.chaos.faults import run_to_end
from bench.failover.judge import FAILOVER, Failover, Losses, disordered, failovers, losses, stale_settlements
from bench.failover.pair import Pair
from bench.servers import exit_on_sigterm
from kingdom.log_output import configure_logs
from kingdom.verify import TrialPlan, TrialReport, ViolationKind
from kingdom.verify.history import read_history
from kingdom.verify.trial import Trial, open_trial
from kingdom.verify.violation import Violation

# The bound: the median time from a promotion to the first handled event, in lease durations.
AT_MOST_LEASES = 1.0
_LEASE = timedelta(seconds=5)
_LOAD_SECONDS = 3.0
_UNREPLICATED_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 0.25
# The kinds of violations that can be found in the final store alone. The other kinds are found by comparing the store
# with the history, which is not possible after a server has lost transactions, because it assigns their ids again.
_OF_FINAL_STORE = frozenset(
    {
        ViolationKind.LOST,
        ViolationKind.TWICE,
        ViolationKind.STUCK,
        ViolationKind.QUARANTINED,
        ViolationKind.POISON,
        ViolationKind.INVARIANT,
        ViolationKind.CONTEST,
        ViolationKind.PROCESS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverResult:
    """The report of the checker, the failovers, and the losses of the servers.

    `stale` are settlements under a lease that was lost, `disordered` are events out of order.
    """

    report: TrialReport
    failovers: Sequence[Failover]
    losses: Losses
    stale: Sequence[Violation]
    disordered: Sequence[Violation]

    @property
    def median_leases(self) -> float:
        """Return the median time from a promotion to the first handled event, in lease durations."""
        seconds = [failover.seconds for failover in self.failovers]
        return statistics.median(seconds) / _LEASE.total_seconds() if seconds else float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill and promote, then check and report."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.CRITICAL)
    with Pair(synchronous=not options.asynchronous and not options.broken) as pair:
        outcome = asyncio.run(_run(pair, options))
    violations = list(_violations(outcome, asynchronous=options.asynchronous))
    complaints = [*map(_describe, violations), *_missed(outcome, options)]
    for words in complaints[:20]:
        print(words, file=sys.stderr)
    figures = json.dumps(_figures(outcome, violations, ok=not complaints))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


async def _run(pair: Pair, options: argparse.Namespace) -> FailoverResult:
    plan = TrialPlan(
        seconds=0,
        seed=options.seed,
        workers=4,
        publishers=2,
        lease=_LEASE,
        pause=timedelta(milliseconds=30),
        drain=timedelta(minutes=3),
    )
    async with open_trial(pair.url, plan, options.keep) as trial:
        for _ in range(plan.workers):
            trial.fleet.add("worker")
        for _ in range(plan.publishers):
            trial.fleet.add("publisher")
        await trial.wait_until_ready()
        for number in range(options.kills):
            await asyncio.sleep(_LOAD_SECONDS)
            await _fail_over(pair, trial, losing=options.asynchronous or options.broken)
            print(f"{number + 1} of {options.kills} primaries killed", file=sys.stderr, flush=True)
        await trial.drain()
        evidence = await trial.evidence()
        lost = losses(evidence)
        return FailoverResult(
            report=trial.report(evidence),
            failovers=list(failovers(evidence.history)),
            losses=lost,
            stale=list(stale_settlements(evidence)),
            disordered=list(disordered(evidence, lost)),
        )


async def _fail_over(pair: Pair, trial: Trial, *, losing: bool) -> None:
    if losing:
        await run_to_end(pair.detach)
        await asyncio.sleep(_UNREPLICATED_SECONDS)
    killed = time.monotonic_ns()
    trial.history.write(FAILOVER, killed=killed, promoted=await run_to_end(pair.fail_over))
    async with asyncio.timeout(trial.plan.patience.total_seconds()):
        while not _is_handled(trial):  # noqa: ASYNC110 - other processes do it
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
    await run_to_end(pair.replace_standby)


def _is_handled(trial: Trial) -> bool:
    """Return whether an event was handled after every failover so far."""
    history = read_history(trial.directory)
    return len(list(failovers(history))) == sum(entry.what == FAILOVER for entry in history)


def _describe(violation: Violation) -> str:
    return f"{violation.kind.value}: {violation.subject}: {violation.detail}"


def _missed(outcome: FailoverResult, options: argparse.Namespace) -> Iterator[str]:
    """Say why the run is not good enough, apart from violations."""
    if options.asynchronous and not (outcome.losses.events or outcome.losses.handled_again):
        yield "the servers lost nothing, so this run shows nothing"
    if outcome.median_leases > options.at_most_leases:
        yield (
            f"the first event was handled {outcome.median_leases:.2f} leases after a promotion (median),"
            f" and at most {options.at_most_leases:.2f} are allowed"
        )


def _violations(outcome: FailoverResult, *, asynchronous: bool) -> Iterator[Violation]:
    """Yield the violations that count. With `asynchronous`, consequences of lost transactions do not count."""
    if not asynchronous:
        yield from outcome.report.violations
        return
    yield from (*outcome.stale, *outcome.disordered)
    for violation in outcome.report.violations:
        allowed = violation.kind is ViolationKind.LOST and violation.subject in outcome.losses.events
        allowed |= violation.kind is ViolationKind.QUARANTINED and violation.subject in outcome.losses.unclosable
        if violation.kind in _OF_FINAL_STORE and not allowed:
            yield violation


def _figures(outcome: FailoverResult, violations: Sequence[Violation], *, ok: bool) -> dict[str, Any]:
    found = Counter(violation.kind for violation in violations)
    seconds = [failover.seconds for failover in outcome.failovers]
    return {
        "ok": ok,
        "seed": outcome.report.seed,
        "primaries_killed": len(outcome.failovers),
        "lease_seconds": _LEASE.total_seconds(),
        "first_handled_leases_median": round(outcome.median_leases, 3),
        "first_handled_seconds": [round(each, 2) for each in seconds],
        "outage_seconds": [round(failover.outage_seconds, 2) for failover in outcome.failovers],
        "published_batches": outcome.report.actions.get("published", 0),
        "events": dict(outcome.report.statuses),
        "acknowledged_events_lost": len(outcome.losses.events),
        "handled_again": len(outcome.losses.handled_again),
        "calls_repeated": outcome.report.violations_by_kind[ViolationKind.REPEATED.value],
        "findings": {kind.value: found[kind] for kind in ViolationKind},
        "details": [_describe(violation) for violation in violations[:20]],
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=sys.modules["bench.failover"].__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how many primaries to kill (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the events")
    parser.add_argument(
        "--asynchronous", action="store_true", help="the standby has not received the last second of each primary"
    )
    parser.add_argument(
        "--broken", action="store_true", help="also lose that second, but check as if replication were synchronous"
    )
    parser.add_argument(
        "--at-most-leases",
        type=float,
        default=AT_MOST_LEASES,
        help=f"the bound of the median time to the first handled event, in lease durations (default {AT_MOST_LEASES})",
    )
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the history in this empty directory")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
