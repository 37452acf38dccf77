"""The sweep of one backend: a reference run, then the same run once per point, then the broken variants."""

import itertools
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.crash_sweep.ending import Ending
from bench.crash_sweep.judge import judge
from bench.crash_sweep.places import Place
from bench.crash_sweep.roles import Stage
from bench.crash_sweep.steps import Point
from bench.crash_sweep.trial import Trial, begin_trial, read_trial
from bench.crash_sweep.variants import VARIANTS
from kingdom.soldiers.settings import SoldierSettings

# A run may take fewer steps than the reference, and never reach its point. If all points are wanted, it is repeated.
_TRIES = 3
_PRINT_EVERY_SECONDS = 10.0
# A broken variant may hang forever, so its time limit is shorter.
_VARIANT_SECONDS = {"scripted": 120.0, "claude": 120.0}


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep: the number of points by role and kind, and counts of the runs.

    `killed` counts the runs that reached their point, `finished` those of them without a finding, and `missed` the
    other runs. `steps_again` counts the steps that agents did before a crash and repeated after it.
    """

    points: dict[str, dict[str, int]] = field(default_factory=dict)
    tried: int = 0
    killed: int = 0
    finished: int = 0
    missed: int = 0
    killed_by_kind: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    caught: dict[str, bool] = field(default_factory=dict)
    cost_usd_reference: float = 0.0
    steps_again: int = 0
    seconds_reference: float = 0.0
    seconds_longest: float = 0.0


class _PlannedRun(NamedTuple):
    """A run with its crash point and its broken variant."""

    point: Point | None = None
    variant: str | None = None


class Sweep:
    """Executes runs on new stores of one backend, some at a time."""

    def __init__(
        self, backend: str, place: Place, directory: Path, *, soldiers: SoldierSettings, jobs: int, seconds: float
    ) -> None:
        self._backend = backend
        self._place = place
        self._directory = directory
        self._soldiers = soldiers
        self._jobs = jobs
        self._seconds = seconds
        self._numbers = itertools.count(1)

    def run(self, wanted: int | None, seed: int, *, variant: str | None, catch: bool) -> SweepResult:
        """Sweep `wanted` points, or all if it is None. With a variant, sweep the points that must detect it."""
        swept = SweepResult()
        reference = self._reference(swept, times=1 if variant or wanted == 0 else 2)
        if reference is None:
            return swept
        points = VARIANTS[variant].shows_at if variant else shuffle_points(swept.points, seed)
        print(f"{self._backend}: {len(points)} points, seed {seed}", flush=True)
        self._sweep(swept, reference, points, wanted, variant)
        if catch and not variant:
            swept.caught = self._catch(reference)
        return swept

    def _reference(self, swept: SweepResult, *, times: int) -> Ending | None:
        """Execute the run several times without a crash. All results must be equal, and only common steps count."""
        trials = [trial for _, _, trial in self._trials([_PlannedRun()] * times)]
        reference = trials[0].ending
        swept.points = _lowest_counts([trial.counts for trial in trials])
        swept.seconds_reference = trials[0].seconds
        swept.cost_usd_reference = reference.cost_usd if reference else 0.0
        for trial in trials:
            found = findings_of(reference, trial) if reference else ["it has no end", *trial.complaints]
            swept.findings += [f"reference: {words}" for words in found]
        return reference

    def _sweep(
        self, swept: SweepResult, reference: Ending, points: Iterable[Point], wanted: int | None, variant: str | None
    ) -> None:
        """Execute one run per point until enough crashes have happened. A missed point is tried again at the end."""
        printed_at = time.monotonic()
        left = list(points)
        swept.tried = len(left) if wanted is None else min(wanted, len(left))
        for _ in range(_TRIES if wanted is None else len(left)):
            missing = swept.tried - swept.killed
            batch, left = left[:missing], left[missing:]
            for number, _, trial in self._trials(_PlannedRun(point, variant) for point in batch):
                self._count(swept, reference, trial)
                if trial.point and trial.killed_at is None:
                    left.append(trial.point)
                if time.monotonic() - printed_at > _PRINT_EVERY_SECONDS:
                    printed_at = time.monotonic()
                    print(f"{self._backend}: {number} of {len(batch)}, {len(swept.findings)} findings", flush=True)
        swept.missed = swept.tried - swept.killed

    def _count(self, swept: SweepResult, reference: Ending, trial: Trial) -> None:
        findings = findings_of(reference, trial)
        for words in findings:
            swept.findings.append(f"{trial.point} ({trial.killed_at}): {words}")
            print(f"{self._backend}: {swept.findings[-1]}", flush=True)
        swept.seconds_longest = max(swept.seconds_longest, trial.seconds)
        if trial.killed_at is not None:
            swept.killed += 1
            swept.killed_by_kind[str(trial.point).partition(" #")[0]] += 1
            swept.finished += not findings
            swept.steps_again += sum(task.again for task in trial.ending.transcripts.values()) if trial.ending else 0

    def _catch(self, reference: Ending) -> dict[str, bool]:
        """Return for each broken variant whether it was detected at each of its points."""
        shown = [_PlannedRun(point, name) for name, variant in VARIANTS.items() for point in variant.shows_at]
        caught = dict.fromkeys(VARIANTS, True)
        for _, wanted, trial in self._trials(shown):
            found = trial.killed_at is not None and findings_of(reference, trial)
            caught[wanted.variant or ""] &= bool(found)
        return caught

    def _trials(self, wanted: Iterable["_PlannedRun"]) -> Iterator[tuple[int, "_PlannedRun", Trial]]:
        """Execute runs, some at the same time. Yield each ended run: its number, its plan, and its result."""
        waiting, running, ended = list(wanted)[::-1], dict[int, tuple[_PlannedRun, Stage]](), 0
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    following = waiting.pop()
                    stage = self._stage(following.variant)
                    running[begin_trial(stage, following.point)] = (following, stage)
                pid, status = os.wait()
                done, stage = running.pop(pid)
                if status:
                    raise RuntimeError(f"a trial ended with {os.waitstatus_to_exitcode(status)}")
                ended += 1
                yield ended, done, read_trial(stage)
                self._place.drop(stage.directory)
                shutil.rmtree(stage.directory)
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _stage(self, variant: str | None) -> Stage:
        directory = self._directory / f"run-{next(self._numbers):05}"
        directory.mkdir()
        seconds = min(self._seconds, _VARIANT_SECONDS[self._soldiers.agent]) if variant else self._seconds
        return Stage(
            url=self._place.make(directory),
            directory=directory,
            seconds=seconds,
            soldiers=self._soldiers,
            variant=variant,
        )


def findings_of(reference: Ending, trial: Trial) -> list[str]:
    """Return what is wrong with a run."""
    if trial.ending is None:
        return trial.complaints or ["the run has no end"]
    return [*trial.complaints, *judge(reference, trial.ending, trial.point)]


def _lowest_counts(counted: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return for each kind of step the lowest number of steps in these runs."""
    first = counted[0]
    return {
        role: {kind: min(each.get(role, {}).get(kind, 0) for each in counted) for kind in kinds}
        for role, kinds in first.items()
        if kinds
    }


def shuffle_points(counts: dict[str, dict[str, int]], seed: int) -> list[Point]:
    """Return all points in random order, alternating between the kinds of steps of every role."""
    kinds = [
        [Point(role, kind, number) for number in range(1, count + 1)]
        for role, of_role in sorted(counts.items())
        for kind, count in sorted(of_role.items())
    ]
    generator = random.Random(seed)
    for points in kinds:
        generator.shuffle(points)
    generator.shuffle(kinds)
    return [point for turn in itertools.zip_longest(*kinds) for point in turn if point is not None]
