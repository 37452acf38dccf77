"""`python -m bench.trading`: exits 0 only if every order was placed once, and every broken variant is caught."""

import argparse
import asyncio
import json
import logging
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm
from bench.trading.evidence import Evidence
from bench.trading.judge import Finding, judge
from bench.trading.nemesis import Nemesis, insist
from bench.trading.process import MARKETS
from bench.trading.scenarios import SCENARIOS
from bench.trading.scene import AS_IT_IS, EXCHANGE, PUSH, Scene
from bench.trading.variants import VARIANTS
from examples.trading.exchange import FAULTS
from examples.trading.store import TradeStore, open_store
from examples.trading.streams import Origin
from kingdom.backends.postgres import migrate
from kingdom.log_output import configure_logs

# In this market the exchange neither answers nor shows orders until the others are done.
_BLIND = MARKETS[-1]
_WEIGHTS = {
    "reject": 0.05,
    "throttle": 0.02,
    "ban": 0.01,
    "time_out": 0.03,
    "book_late": 0.02,
    "drop": 0.04,
    "book_and_drop": 0.04,
    "fail": 0.03,
    "book_and_fail": 0.03,
    "lookup": 0.1,
}
_PUSH_WEIGHTS = {"drop": 0.02, "record_and_drop": 0.02, "fail": 0.02}
_BACKTESTS = 5
_PRICES = [100.0, 96.0, 97.0, 101.0, 100.0]
# A run with fewer orders has fewer processes.
_LONG = 200
_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The evidence while the blind market was suspended and after all faults had ended, and its findings."""

    suspended: Evidence
    final: Evidence
    findings: Sequence[Finding]
    acts: Mapping[str, int]
    complaints: Sequence[str]
    seconds: float
    drained_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial, catch the variants, and report."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.CRITICAL)
    kept = tempfile.TemporaryDirectory() if options.keep is None else nullcontext(options.keep)
    if options.keep is not None:
        options.keep.mkdir(parents=True)
    with PrivateCluster(ignore_database_url=True) as cluster, kept as directory:
        result = asyncio.run(_run(cluster, Path(directory), options))
        caught = {} if options.no_variants or options.variant != AS_IT_IS else _catch_variants(cluster)
    complaints = [
        *_complaints(result, options),
        *(f"not caught: {name}" for name, found in caught.items() if not found),
    ]
    for words in complaints[:20]:
        print(words, file=sys.stderr)
    figures = json.dumps(_figures(result, caught, options, ok=not complaints))
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


async def _run(cluster: PrivateCluster, directory: Path, options: argparse.Namespace) -> TrialResult:
    url = cluster.create_database("trading")
    await migrate(url)
    scene = Scene(url, directory, variant=options.variant, seed=options.seed)
    started = time.monotonic()
    try:
        workers = _workers(options.orders)
        await scene.open(workers)
        await scene.set_faults(EXCHANGE, script=list(FAULTS), weights=_WEIGHTS, blind_markets=[_BLIND])
        await scene.set_faults(PUSH, script=["record_and_drop", "drop", "fail"], weights=_PUSH_WEIGHTS)
        async with open_store(scene.settings) as store:
            await _order_backtests(store)
            scene.feed(options.orders, min(20.0, options.orders / 5))
            nemesis = Nemesis(scene, cluster, store, list(workers), options.seed)
            await nemesis.run()
        drained = time.monotonic()
        suspended, complaints = await _come_to_rest(scene, options.drain)
        findings = judge(suspended, at_rest=not complaints)
        if not any(row["state"] == "UNKNOWN" for row in suspended.attempts):
            complaints.append(f"no attempt in {_BLIND} is UNKNOWN")
        await scene.set_faults(EXCHANGE)
        await scene.set_faults(PUSH)
        final, late = await _come_to_rest(scene, options.drain, everything=True)
        ended = time.monotonic()
        return TrialResult(
            suspended=suspended,
            final=final,
            findings=[*dict.fromkeys([*findings, *judge(final, at_rest=not late)])],
            acts=nemesis.counts,
            complaints=[*complaints, *late],
            seconds=ended - started,
            drained_seconds=ended - drained,
        )
    finally:
        scene.close()


def _workers(orders: int) -> dict[str, Sequence[str]]:
    """Return the roles of each process; none means all. Every role runs at least twice."""
    if orders < _LONG:
        return {"executor-a": ("order-executor", "reconcile"), "others-a": (), "others-b": ()}
    return {
        "executor-a": ("order-executor",),
        "executor-b": ("order-executor",),
        "notifier-a": ("notification", "backtest"),
        "notifier-b": ("notification", "backtest"),
        "reconciler-a": ("reconcile", "system"),
        "reconciler-b": ("reconcile", "system"),
    }


async def _order_backtests(store: TradeStore) -> None:
    for number in range(_BACKTESTS):
        origin = Origin(owner_id="OWNER", market=MARKETS[0], strategy_key="EXTREME_FLIP")
        job = f"job-{number}"
        event = origin.envelope("RunBacktest", "Backtest", job, {"jobId": job, "prices": _PRICES})
        await insist(lambda event=event: store.bus.publish(event))  # type: ignore[misc]  # a default of a lambda


async def _come_to_rest(scene: Scene, seconds: float, *, everything: bool = False) -> tuple[Evidence, list[str]]:
    """Wait until nothing is left to do, except in stopped markets. With `everything`, wait for these markets too."""
    deadline = time.monotonic() + seconds
    while True:
        evidence = await scene.evidence()
        if evidence.is_quiet and not (everything and evidence.stopped_markets):
            return evidence, []
        if time.monotonic() > deadline:
            states = Counter(row["state"] for row in evidence.intents)
            return evidence, [f"not at rest after {seconds:g} s: {dict(states)}, {evidence.open_events} open events"]
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


def _catch_variants(cluster: PrivateCluster) -> dict[str, bool]:
    """Run the scripted trial of every broken variant; True if its rule was found broken."""
    caught = {}
    for number, scenario in enumerate(SCENARIOS):
        url = cluster.create_database(f"variant_{number}")
        asyncio.run(migrate(url))
        try:
            findings = asyncio.run(scenario.run(url, broken=True))
            caught[scenario.name] = any(finding.rule is scenario.breaks for finding in findings)
        except TimeoutError as error:
            print(f"{scenario.name} did not run to its end: {error!r}", file=sys.stderr)
            caught[scenario.name] = False
        cluster.drop_database(f"variant_{number}")
    return caught


def _complaints(result: TrialResult, options: argparse.Namespace) -> Iterator[str]:
    yield from result.complaints
    for finding in result.findings:
        yield f"{finding.rule}: {finding.subject} {finding.detail}"
    if len(result.final.intents) != options.orders:
        yield f"{len(result.final.intents)} intents for {options.orders} signals"
    faults = {line["fault"] for line in result.final.book if line["what"] == "post"}
    yield from (f"the exchange never did: {fault}" for fault in FAULTS.keys() - faults)
    if sum(row["event_type"] == "BacktestCompleted" for row in result.final.pushed) != _BACKTESTS:
        yield "a backtest did not complete, or completed twice"


def _figures(
    result: TrialResult, caught: Mapping[str, bool], options: argparse.Namespace, *, ok: bool
) -> dict[str, Any]:
    final, book = result.final, Counter(line["what"] for line in result.final.book)
    entered = Counter(row["later"] for row in final.audit if row["earlier"] != row["later"])
    faults = Counter(line["fault"] for line in final.book if line["what"] == "post" and line["fault"])
    return {
        "ok": ok,
        "seed": options.seed,
        "seconds": round(result.seconds, 1),
        "drained_seconds": round(result.drained_seconds, 1),
        "orders": options.orders,
        "intents": dict(Counter(row["state"] for row in final.intents)),
        "attempts": len(final.attempts),
        "sent": entered["SENT"],
        "throttled": entered["THROTTLED"],
        "unknown": entered["UNKNOWN"],
        "unknown_while_suspended": sum(row["state"] == "UNKNOWN" for row in result.suspended.attempts),
        "unknown_at_end": sum(row["state"] == "UNKNOWN" for row in final.attempts),
        "suspensions": sum(row["event_type"] == "MarketSuspended" for row in final.pushed),
        "exchange": {what: book[what] for what in ("post", "order", "rejected", "lookup", "lookup_failed")},
        "exchange_faults": dict(faults),
        "notifications": len(final.pushed),
        "pushes": final.pushes.total(),
        "kills": dict(result.acts),
        "findings": dict(Counter(finding.rule for finding in result.findings)),
        "variants_caught": dict(caught),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.trading", description=sys.modules["bench.trading"].__doc__)
    parser.add_argument("--orders", type=int, default=1000, help="the number of signals (default 1000)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(32), help="the seed of an earlier run, for the same faults"
    )
    parser.add_argument("--drain", type=float, default=300.0, help="the seconds to come to rest (default 300)")
    parser.add_argument("--variant", choices=VARIANTS, default=AS_IT_IS, help="run a broken variant of the pipeline")
    parser.add_argument("--no-variants", action="store_true", help="skip the scripted trials of the variants")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the book and the logs in this directory")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
