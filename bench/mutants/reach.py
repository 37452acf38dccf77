"""Record in a pytest plugin which statements and functions each test reaches, and choose the tests for a mutant."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import LiteralString

import pytest

from bench.mutants.mutant import Mutant
from kingdom.backends.postgres import queries

# This variable names the file to record into. Without it the plugin does nothing.
RECORD = "KINGDOM_MUTANTS_REACH"
_load_queries = queries.load_queries


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """A test, how long it took, and the statements and functions that it reached."""

    test: str
    seconds: float
    places: frozenset[str]


def read_reach(file: Path) -> list[MeasuredTest]:
    """Return the record of a run, the quickest test first."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    tests = (MeasuredTest(line["test"], line["seconds"], frozenset(line["places"])) for line in lines)
    return sorted(tests, key=lambda each: each.seconds)


def choose_tests(tests: Sequence[MeasuredTest], mutant: Mutant, *, only_reaching: bool) -> list[str]:
    """Return the tests for a mutant: those that reach it come first, the quickest of them first."""
    place = _place_of(mutant)
    reaching = [each.test for each in tests if not place or place in each.places]
    return reaching if only_reaching else [*reaching, *(each.test for each in tests if each.test not in set(reaching))]


def _place_of(mutant: Mutant) -> str:
    """Return the place of a mutant as the plugin writes it: a statement by its name, a function with its file."""
    if not mutant.file:
        return ""
    return mutant.place if mutant.file.endswith(".sql") else f"{mutant.file} {mutant.place}"


class _Recorder:
    """Collects the places that the running test reaches."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._places: set[str] = set()
        self._known: dict[CodeType, str | None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._places.clear()
        began = time.monotonic()
        # Only the calls of functions are traced, not their lines.
        threading.settrace(self._note_call)
        sys.settrace(self._note_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seconds = round(time.monotonic() - began, 3)
            line = {"test": item.nodeid, "seconds": seconds, "places": sorted(self._places)}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def note_statement(self, name: str) -> None:
        self._places.add(name)

    def _note_call(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code not in self._known:
            _, inside, file = code.co_filename.rpartition("/kingdom/")
            self._known[code] = f"{file} {code.co_qualname}" if inside else None
        if place := self._known[code]:
            self._places.add(place)


class _NotingQueries(dict[str, LiteralString]):
    """Queries that report each use."""

    def __init__(self, named: Iterable[tuple[str, LiteralString]], recorder: _Recorder) -> None:
        super().__init__(named)
        self._recorder = recorder

    def __getitem__(self, name: str) -> LiteralString:
        self._recorder.note_statement(name)
        return super().__getitem__(name)


def pytest_configure(config: pytest.Config) -> None:
    """Record into the file that the environment names."""
    if file := os.environ.get(RECORD):
        recorder = _Recorder(Path(file))
        config.pluginmanager.register(recorder)

        def load_noting(schema: str) -> _NotingQueries:
            return _NotingQueries(_load_queries(schema).items(), recorder)

        for module in list(sys.modules.values()):
            if getattr(module, "load_queries", None) is _load_queries:
                module.load_queries = load_noting  # type: ignore[attr-defined]  # it was there a line ago
