"""The rounds of a race: in each, all sides take turns, column by column."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.race.figures import Figures
from bench.race.processes import SideFailedError
from bench.race.sides import SIDES, Side
from bench.race.stores import Store
from bench.race.turns import take_turn


class Race:
    """Runs the sides in turns, and notes their figures."""

    def __init__(
        self, figures: Figures, stores: Mapping[str, Store], interpreters: Mapping[str, Path], *, events: int
    ) -> None:
        self._figures = figures
        self._stores = stores
        self._interpreters = interpreters
        self._events = events

    def run(self, columns: Sequence[str], *, rounds: int, more: int, until: float) -> tuple[int, int]:
        """Run rounds of all sides, then more without peers, and return both numbers.

        A round does not begin if it would probably end too late, judged by the longest earlier round of its kind. The
        first round without peers is judged by the rounds of all sides.
        """
        names = list(self._interpreters)
        complete = self._run_rounds(columns, names, range(rounds), until, 0.0)
        own = [name for name in names if not SIDES[name].is_peer]
        numbers = range(len(complete), len(complete) + more)
        return len(complete), len(self._run_rounds(columns, own, numbers, until, max(complete, default=0.0)))

    def _run_rounds(
        self, columns: Sequence[str], names: Sequence[str], numbers: range, until: float, first_seconds: float
    ) -> list[float]:
        """Run rounds and return their durations. The first one is expected to last `first_seconds`."""
        durations: list[float] = []
        for number in numbers:
            began = time.monotonic()
            if number and began + max(durations, default=first_seconds) > until:
                break
            self._run_round(columns, names, number)
            durations.append(time.monotonic() - began)
        return durations

    def _run_round(self, columns: Sequence[str], names: Sequence[str], number: int) -> None:
        # Another side begins in every round.
        first = number % max(len(names), 1)
        turned = [*names[first:], *names[:first]]
        for column in columns:
            for name in turned:
                if column in SIDES[name].columns and name not in self._figures.absent:
                    self._take_turn(SIDES[name], column, number)

    def _take_turn(self, side: Side, column: str, number: int) -> None:
        events = side.events(column, self._events)
        try:
            sample = take_turn(self._stores[side.server], side, self._interpreters[side.name], column, events)
        except SideFailedError as error:
            if not side.is_peer:
                raise
            self._figures.exclude(side.name, str(error).splitlines()[-1])
            print(f"{side.name} does not run: {error}", file=sys.stderr)
            return
        self._figures.note(side.name, column, sample)
        cost = f"{sample.client_us:,.0f} + {sample.server_us:,.0f} µs"
        latency = "" if sample.p50_ms is None else f", p50 {sample.p50_ms:.1f} ms"
        print(f"round {number + 1}: {side.name}, {column}: {sample.rate:,.0f}/s, {cost}{latency}", file=sys.stderr)
