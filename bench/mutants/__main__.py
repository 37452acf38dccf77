"""`python -m bench.mutants`: exits 0 only if almost every mutant is noticed. The last line has the figures."""

import argparse
import json
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bench.mutants.mutant import Mutant
from bench.mutants.reach import MeasuredTest, choose_tests
from bench.mutants.sites import REGIONS, Region, draw, find_by_name, find_mutants
from bench.mutants.survivors import EXPLAINED
from bench.mutants.trial import SUITE, Bench, Verdict
from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm

# The bound: the share of the mutants that must be noticed.
KILLED_MIN = 0.95
BOTH = "both"
_SEED = 17
# A test or a stage that takes this many times longer than without a mutant counts as hanging.
_PATIENCE_FACTOR = 3
_PATIENCE_SECONDS_MIN = 60.0
_FIRST_PATIENCE_SECONDS = 900.0
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw and try mutants, report, and check the bounds."""
    options = _parse(arguments)
    regions = [region for region in REGIONS.values() if options.backend in (region.backend, BOTH)]
    if options.list:
        for region in regions:
            for mutant in find_mutants(region):
                print(mutant.name)
        return 0
    console = Console(stderr=True)
    if options.only:
        drawn = [find_by_name(name) for name in options.only]
        regions = list(dict.fromkeys(region for region, _ in drawn))
    else:
        drawn = draw(regions, options.seed, options.share)
    began = time.monotonic()
    with ExitStack() as stack:
        clusters = [stack.enter_context(PrivateCluster()) for _ in range(options.jobs)]
        survey = _survey(regions, clusters, options.suite, console)
        verdicts = list(_try_all(drawn, clusters, survey, console))
    figures = _figures(verdicts, seed=options.seed, seconds=time.monotonic() - began)
    least = 1 if options.only or options.share < 1 else sum(region.share for region in regions)
    complaints = list(complaints_about(verdicts, least=least))
    _show(verdicts, complaints)
    line = json.dumps(figures | {"ok": not complaints})
    if options.json == "-":
        print(line)
    else:
        Path(options.json).write_text(line + "\n")
    return 1 if complaints else 0


@dataclass(frozen=True, slots=True)
class Survey:
    """The tests of each region and stage with what they reach, and the time limits of a stage and of a test."""

    stages: Mapping[Region, Mapping[str, Sequence[MeasuredTest]]]
    patience: float
    test_patience: float


class _Benches:
    """Tests as many mutants at a time as there are servers."""

    def __init__(self, clusters: Sequence[PrivateCluster], *, patience: float, test_patience: float) -> None:
        self._all = [Bench(cluster, patience=patience, test_patience=test_patience) for cluster in clusters]
        self._free: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        for bench in self._all:
            self._free.put(bench)
        self._pool = ThreadPoolExecutor(len(self._all))

    def submit(self, work: Callable[[Bench], T]) -> Future[T]:
        """Do something with the next free bench."""
        return self._pool.submit(self._run, work)

    def close(self) -> None:
        """End what is running. The pool would otherwise finish everything before it lets an interrupt through."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for bench in self._all:
            bench.stop()

    def _run(self, work: Callable[[Bench], T]) -> T:
        bench = self._free.get()
        try:
            return work(bench)
        finally:
            self._free.put(bench)


def _survey(
    regions: Sequence[Region], clusters: Sequence[PrivateCluster], suite: Sequence[str] | None, console: Console
) -> Survey:
    """Test the unchanged product, which must pass. Tests that several regions share run only once."""
    of_backends = {region.backend: region for region in regions}
    own_tests = set() if suite else {region.own_tests for region in regions}
    with closing(
        _Benches(clusters, patience=_FIRST_PATIENCE_SECONDS, test_patience=_FIRST_PATIENCE_SECONDS)
    ) as benches:
        contract = {backend: benches.submit(partial(_survey_contract, backend, suite)) for backend in of_backends}
        own = {tests: benches.submit(partial(Bench.survey, suite=tests)) for tests in own_tests}
        faults = [benches.submit(partial(Bench.judge, region=region)) for region in of_backends.values()]
        names = {survey: backend for backend, survey in contract.items()}
        names |= {survey: f"{tests[0]} and similar" for tests, survey in own.items()}
        for survey in as_completed(names):
            console.print(f"{names[survey]}, unchanged: {len(survey.result())} tests passed")
        for verdict in (each.result() for each in faults):
            if verdict.killed_by:
                sys.exit(f"fault injection failed on the unchanged product: {verdict.output}")
    stages = {
        region: {
            "contract suite": contract[region.backend].result(),
            "own tests": own[region.own_tests].result() if own else [],
        }
        for region in regions
    }
    suites = [[each.seconds for each in tests] for some in stages.values() for tests in some.values()]
    longest = max(*map(sum, suites), *(each.result().seconds for each in faults))
    slowest = max(seconds for suite in suites for seconds in suite)
    return Survey(
        stages,
        patience=max(_PATIENCE_SECONDS_MIN, longest * _PATIENCE_FACTOR),
        test_patience=max(_PATIENCE_SECONDS_MIN, slowest * _PATIENCE_FACTOR),
    )


def _survey_contract(backend: str, suite: Sequence[str] | None, bench: Bench) -> list[MeasuredTest]:
    return bench.survey(suite or SUITE, "-k", backend)


def _choose(survey: Survey, region: Region, mutant: Mutant) -> dict[str, list[str]]:
    """Return the tests of each stage for a mutant.

    Of the contract suite, only the tests that reach the mutant run. All own tests of the region run, because they may
    reach the mutant in another process, which is not recorded.
    """
    return {
        stage: choose_tests(tests, mutant, only_reaching=stage == "contract suite")
        for stage, tests in survey.stages[region].items()
    }


def _try_all(
    drawn: Sequence[tuple[Region, Mutant]], clusters: Sequence[PrivateCluster], survey: Survey, console: Console
) -> Iterator[Verdict]:
    """Test each mutant."""

    def judge(region: Region, mutant: Mutant, bench: Bench) -> Verdict:
        return bench.judge(region, mutant, _choose(survey, region, mutant))

    with closing(_Benches(clusters, patience=survey.patience, test_patience=survey.test_patience)) as benches:
        pending = [benches.submit(partial(judge, region, mutant)) for region, mutant in drawn]
        for number, done in enumerate(as_completed(pending), 1):
            verdict = done.result()
            fate = f"killed by the {verdict.killed_by}" if verdict.killed_by else "SURVIVED"
            words = f"[{number}/{len(drawn)}] {fate} in {verdict.seconds:.0f} s: {verdict.mutant.name}"
            console.print(words, markup=False, soft_wrap=True)
            if verdict.killed_by:
                console.print(f"    {verdict.output}", markup=False, soft_wrap=True, style="dim")
            yield verdict


def complaints_about(verdicts: Sequence[Verdict], *, least: int) -> Iterator[str]:
    """Describe the bounds that these verdicts do not keep."""
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killed_by]
    if len(verdicts) < least:
        yield f"{len(verdicts)} mutants were tried, at least {least} must be"
    if len(survivors) > (1 - KILLED_MIN) * len(verdicts):
        yield f"{len(survivors)} of {len(verdicts)} mutants survived, at most {1 - KILLED_MIN:.0%} may"
    for survivor in survivors:
        if survivor.name not in EXPLAINED:
            yield f"survived without an explanation: {survivor.name}"


def _figures(verdicts: Sequence[Verdict], *, seed: int, seconds: float) -> dict[str, Any]:
    killers = Counter(verdict.killed_by for verdict in verdicts if verdict.killed_by)
    killed = killers.total()
    return {
        "seed": seed,
        "mutants": len(verdicts),
        "killed": killed,
        "killed_share": round(killed / len(verdicts), 3),
        "killed_by": dict(killers),
        "survivors": [verdict.mutant.name for verdict in verdicts if not verdict.killed_by],
        "seconds": round(seconds),
    }


def _show(verdicts: Sequence[Verdict], complaints: Sequence[str]) -> None:
    table = Table("mutants", "killed", "survived", "by")
    for name, region in REGIONS.items():
        own = [verdict for verdict in verdicts if verdict.mutant.file in region.files]
        killers = Counter(verdict.killed_by for verdict in own if verdict.killed_by)
        by = ", ".join(f"{killer} {count}" for killer, count in killers.most_common())
        table.add_row(name, str(killers.total()), str(len(own) - killers.total()), by)
    Console(stderr=True).print(table)
    for words in complaints:
        print(f"bound not kept: {words}", file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description=sys.modules["bench.mutants"].__doc__)
    backends = sorted({region.backend for region in REGIONS.values()})
    parser.add_argument(
        "--backend", choices=[*backends, BOTH], default=BOTH, help="the backend whose tests try the mutants"
    )
    parser.add_argument("--seed", type=int, default=_SEED, help=f"the seed of the draw (default {_SEED})")
    parser.add_argument("--share", type=float, default=1.0, help="draw this share of the usual number")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this mutant; can be repeated")
    parser.add_argument("--list", action="store_true", help="print the name of every mutant")
    parser.add_argument(
        "--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="how many mutants are tested at a time"
    )
    parser.add_argument(
        "--suite", nargs="+", help="run these tests before the fault injection, in place of all other tests"
    )
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
