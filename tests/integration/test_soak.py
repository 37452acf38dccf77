"""The soak: its short form runs, stays constant, and can fail."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.soak.minutes import Minute, complaints

ROOT = Path(__file__).parents[2]
MEGABYTES = 1_000_000
FLAT = [
    Minute(
        number=number,
        pinned=number == 4,
        rate=5000.0,
        server_microseconds=100.0,
        sizes={"outbox_event": 50 * MEGABYTES, "outbox_key": 8192 * number},
        dead={"outbox_event": 1000},
    )
    for number in range(1, 11)
]


def soak(*arguments: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "bench.soak", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.benches
def test_a_short_soak_is_flat_and_loses_nothing() -> None:
    # With "minutes" of two seconds, rate and cost vary more, so more noise is allowed.
    code, figures, words = soak("--seconds", "24", "--minute", "2", "--noise", "3")
    assert figures["published"] == figures["archived"] > 0
    assert [minute["number"] for minute in figures["minutes"] if minute["pinned"]] == [4]
    assert len(figures["minutes"]) == 12
    assert {"outbox_event", "outbox_lease", "outbox_key", "outbox_open"} <= figures["minutes"][0]["sizes"].keys()
    assert (code, figures["holds"]) == (0, True), words


@pytest.mark.benches
def test_a_soak_without_vacuum_is_caught() -> None:
    # The "minutes" are long enough for the tables to grow by more than a few pages.
    code, figures, words = soak("--without-vacuum", "--seconds", "48", "--minute", "4")
    assert "not flat: outbox_event: grew" in words
    assert (code, figures["holds"]) == (1, False)


def changed(number: int, **figures: Any) -> list[Minute]:
    return [replace(minute, **figures) if minute.number == number else minute for minute in FLAT]


def test_flat_minutes_are_accepted() -> None:
    assert complaints(FLAT) == []


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_a_size_may_be_different_before_the_third_minute_and_around_the_pin(number: int) -> None:
    assert complaints(changed(number, sizes={"outbox_event": 500 * MEGABYTES, "outbox_key": 0})) == []


def test_a_size_that_grows_after_the_pin_is_not_flat() -> None:
    grown = changed(9, sizes={"outbox_event": 76 * MEGABYTES, "outbox_key": 0})
    assert complaints(grown) == ["outbox_event: grew 1.52 times, 1.5 is allowed"]


def test_a_size_that_shrinks_is_flat() -> None:
    assert complaints(changed(10, sizes={"outbox_event": 5 * MEGABYTES, "outbox_key": 0})) == []


@pytest.mark.parametrize("number", [3, 4, 10])
def test_a_rate_that_drops_is_not_flat(number: int) -> None:
    assert complaints(changed(number, rate=2499.0)) != []


def test_an_event_that_costs_more_and_more_is_not_flat() -> None:
    assert complaints(changed(8, server_microseconds=151.0)) != []


@pytest.mark.parametrize("number", [4, 5])
def test_an_event_may_cost_more_while_xmin_is_pinned_and_right_after(number: int) -> None:
    assert complaints(changed(number, server_microseconds=200.0)) == []


def test_too_few_minutes_prove_nothing() -> None:
    assert complaints(FLAT[:6]) != []
