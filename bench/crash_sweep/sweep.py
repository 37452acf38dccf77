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
from typing import Any, NamedTuple

from bench.crash_sweep.course import Course
from bench.crash_sweep.places import Place
from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import LABEL, Point
from bench.crash_sweep.trial import Trial, begin_trial, read_trial
from bench.servers import free_port
from kingdom.soldiers.settings import SoldierSettings

# A run may take fewer steps than the reference, and never reach its point. If all points are wanted, it is repeated.
_TRIES = 3
_PRINT_EVERY_SECONDS = 10.0
# A distinct step that happens more often happens periodically, and how often depends on the time.
_NUMBER_MAX = 12


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep: the number of points by role and kind, and counts of the `tried` points.

    `killed` counts the points that were reached, `finished` those of them whose run has no finding, and `missed` the
    other points. `steps_again` counts the steps that agents did before a crash and repeated after it.
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
    """A run with the points at which its roles die, and its broken variant."""

    points: tuple[Point, ...] = ()
    variant: str | None = None


class Sweep:
    """Executes runs on new stores of one backend, some at a time."""

    def __init__(
        self,
        course: Course,
        backend: str,
        place: Place,
        directory: Path,
        *,
        soldiers: SoldierSettings,
        jobs: int,
        seconds: float,
    ) -> None:
        self._course = course
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
        every = one_each(swept.points, seed) if self._course.distinct_steps else shuffle_points(swept.points, seed)
        points = self._course.variants[variant].shows_at if variant else every
        print(f"{self._backend}: {len(points)} points, seed {seed}", flush=True)
        self._sweep(swept, reference, points, wanted, variant)
        if catch and not variant:
            swept.caught = self._catch(reference)
        return swept

    def _reference(self, swept: SweepResult, *, times: int) -> Any:
        """Execute the run once or twice without a crash. All results must be equal, and only common steps count."""
        trials = [trial for _, _, trial in self._trials([_PlannedRun()] * times)]
        reference = trials[0].ending
        swept.points = _lowest_counts([trial.counts for trial in trials])
        swept.seconds_reference = trials[0].seconds
        swept.cost_usd_reference = reference.cost_usd if reference else 0.0
        for trial in trials:
            found = self._findings(reference, trial) if reference else ["it has no end", *trial.complaints]
            swept.findings += [f"reference: {words}" for words in found]
        return reference

    def _sweep(
        self, swept: SweepResult, reference: Any, points: Iterable[Point], wanted: int | None, variant: str | None
    ) -> None:
        """Execute runs until enough points have been reached. A missed point is tried again at the end."""
        printed_at = time.monotonic()
        left = list(points)
        swept.tried = len(left) if wanted is None else min(wanted, len(left))
        for _ in range(_TRIES if wanted is None else len(left)):
            owed = swept.tried - swept.killed
            turn, left = left[:owed], left[owed:]
            runs = [_PlannedRun(points, variant) for points in self._together(turn)]
            for number, _, trial in self._trials(runs):
                self._count(swept, reference, trial)
                left += [point for point in trial.points if point not in trial.killed]
                if time.monotonic() - printed_at > _PRINT_EVERY_SECONDS:
                    printed_at = time.monotonic()
                    print(f"{self._backend}: {number} of {len(runs)}, {len(swept.findings)} findings", flush=True)
        swept.missed = swept.tried - swept.killed

    def _together(self, points: Sequence[Point]) -> list[tuple[Point, ...]]:
        """Return the points of each run: one point, or one of each role."""
        if not self._course.distinct_steps:
            return [(point,) for point in points]
        of_roles = [[point for point in points if point.role == role] for role in self._course.roles]
        runs = itertools.zip_longest(*of_roles)
        return [tuple(point for point in run if point is not None) for run in runs]

    def _count(self, swept: SweepResult, reference: Any, trial: Trial) -> None:
        findings = self._findings(reference, trial)
        crashes = ", ".join(f"{point} ({trial.killed_at.get(point.role)})" for point in trial.points)
        for words in findings:
            swept.findings.append(f"{crashes}: {words}")
            print(f"{self._backend}: {swept.findings[-1]}", flush=True)
        swept.seconds_longest = max(swept.seconds_longest, trial.seconds)
        swept.killed += len(trial.killed)
        swept.killed_by_kind.update(f"{point.role} {point.kind.partition(LABEL)[0]}" for point in trial.killed)
        swept.finished += 0 if findings else len(trial.killed)
        swept.steps_again += trial.ending.steps_again if trial.ending and trial.killed else 0

    def _catch(self, reference: Any) -> dict[str, bool]:
        """Return for each broken variant whether it was detected at each of its points."""
        variants = self._course.variants
        shown = [_PlannedRun((point,), name) for name, variant in variants.items() for point in variant.shows_at]
        caught = dict.fromkeys(variants, True)
        for _, wanted, trial in self._trials(shown):
            name = wanted.variant or ""
            found = any(variants[name].finding in words for words in self._findings(reference, trial))
            caught[name] &= bool(trial.killed) and found
        return caught

    def _findings(self, reference: Any, trial: Trial) -> list[str]:
        """Return what is wrong with a run."""
        if trial.ending is None:
            return trial.complaints or ["the run has no end"]
        return [*trial.complaints, *self._course.judge(reference, trial.ending, trial.points)]

    def _trials(self, wanted: Iterable["_PlannedRun"]) -> Iterator[tuple[int, "_PlannedRun", Trial]]:
        """Execute runs, some at the same time. Yield each ended run: its number, what was wanted, and its result."""
        waiting, running, ended = list(wanted)[::-1], dict[int, tuple[_PlannedRun, Stage]](), 0
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    following = waiting.pop()
                    stage = self._stage(following.variant)
                    running[begin_trial(self._course, stage, following.points)] = (following, stage)
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
        seconds = min(self._seconds, self._course.variant_seconds) if variant else self._seconds
        return Stage(
            url=self._place.make(directory),
            directory=directory,
            seconds=seconds,
            soldiers=self._soldiers,
            variant=variant,
            ports={name: free_port() for name in self._course.servers},
        )


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


def one_each(counts: dict[str, dict[str, int]], seed: int) -> list[Point]:
    """Return one point of every kind of every role, shuffled: any of the steps of that kind."""
    generator = random.Random(seed)
    kinds = [(role, kind, count) for role, of_role in sorted(counts.items()) for kind, count in sorted(of_role.items())]
    points = [Point(role, kind, generator.randint(1, min(count, _NUMBER_MAX))) for role, kind, count in kinds if count]
    generator.shuffle(points)
    return points
