"""The bench of the court runs in its short form and can fail."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.court.burst import BurstCounts, judge
from bench.court.growth import measure_database, measure_files
from bench.court.latency import STARTED, STEPS, percentile
from bench.court.webhooks import review_asked
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from kingdom.court.documents import EventStatus, ExternalEvent, Route
from tests.benches import bench

SHORT = ("court", "--quick")
BURST = {
    "webhooks of both bursts without the expected answer 202",
    "events of the burst lost, doubled or not routed",
}
EVENT = review_asked(7).activity.event
PLACE = "01-evt"


def figures_of(done: subprocess.CompletedProcess[str], backend: str) -> dict[str, Any]:
    report = json.loads(done.stdout.splitlines()[-1])
    return {figure["name"]: figure for figure in report["backends"][backend]["figures"]}


@pytest.mark.benches
def test_the_bench_counts_every_webhook_once_and_measures_each_step() -> None:
    done = bench(*SHORT, "--backend", "postgres", "--only", "latency", "--only", "burst", "--json", "-", ends_with=0)
    figures = figures_of(done, "postgres")
    # Other tests run at the same time, so only the long form, on its own machine, has time limits.
    assert {name for name, figure in figures.items() if "bound" in figure} == BURST
    medians = [figures[f"{step}, p50 ms"]["value"] for step in STEPS]
    assert medians[0] > 0
    # The sender may get the answer to its webhook after the King has handled the event, so the first step is left out.
    assert medians[1:] == sorted(medians[1:])
    assert figures["burst, webhooks a second"]["value"] > 0


@pytest.mark.benches
def test_the_bench_fails_if_the_king_scans_all_events(tmp_path: Path) -> None:
    report = tmp_path / "court.json"
    done = bench(*SHORT, "--backend", "files", "--variant", "scan", "--json", report, ends_with=1)
    assert "bound not kept: files: system calls of an event, growth: " in done.stderr
    assert not json.loads(report.read_text())["holds"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        (("--variant", "polls"), f"{STARTED}, p50 ms: "),
        (("--only", "latency", "--demand", "1000"), f"{STARTED}, p50 ms: "),
        (("--variant", "lose_events"), "events of the burst lost, doubled or not routed: 20"),
    ],
)
def test_the_bench_fails_if_the_court_is_slow_or_loses_events(defect: tuple[str, ...], complaint: str) -> None:
    done = bench(*SHORT, "--backend", "files", *defect, ends_with=1)
    assert f"bound not kept: files: {complaint}" in done.stderr


@pytest.mark.benches
@pytest.mark.parametrize("scans", [False, True])
async def test_the_cost_of_an_event_grows_with_the_database_only_if_the_king_scans(
    cluster: PrivateCluster, *, scans: bool
) -> None:
    figures = Figures()
    await measure_database(cluster, figures, stored=(200, 2_000), events=5, scans=scans)
    wrong = {words.partition(":")[0] for words in figures.complaints()}
    assert wrong == ({"rows of an event, growth", "buffers of an event, growth"} if scans else set())
    assert {figure.name for figure in figures.all if figure.bound} == growths("statements", "rows", "buffers")


@pytest.mark.benches
async def test_an_event_costs_the_same_system_calls_for_any_store_size(tmp_path: Path) -> None:
    figures = Figures()
    await measure_files(tmp_path, figures, stored=(10, 200), events=5, scans=False)
    assert figures.complaints() == []
    assert {figure.name for figure in figures.all if figure.bound} == growths("system calls")
    assert all(figure.value > 0 for figure in figures.all)


def growths(*counted: str) -> set[str]:
    return {f"{what} of {of}, growth" for what in counted for of in ("an event", "a periodic check")}


def counts(*events: ExternalEvent, noticed: int = 1, waiting: str = PLACE, holders: int = 0) -> BurstCounts:
    return BurstCounts(
        events=events,
        noticed=Counter({EVENT.id: noticed}),
        waiting=frozenset({waiting}),
        holders=holders,
    )


def routed(**route: str) -> ExternalEvent:
    return msgspec.structs.replace(EVENT, routes=(Route(general="gen-bench", rule="gen-bench#1", **route),))


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (counts(), "is lost"),
        (counts(EVENT), "is pending with 0 routes"),
        (counts(routed(waiting=PLACE), noticed=2), "was noticed 2 times"),
        (counts(routed(waiting=PLACE), waiting="another"), "neither waits nor is assigned"),
        (counts(routed(assignment_id="task-1"), holders=9), "9 assignments hold one of 8 slots"),
    ],
)
def test_every_problem_after_a_burst_is_found(found: BurstCounts, complaint: str) -> None:
    (words,) = judge(found, [EVENT.id], 8)
    assert complaint in words


def test_a_burst_whose_events_all_wait_or_are_assigned_has_no_problem() -> None:
    assert EVENT.status is EventStatus.PENDING
    assert not list(judge(counts(routed(waiting=PLACE)), [EVENT.id], 8))
    assert not list(judge(counts(routed(assignment_id="task-1"), holders=8), [EVENT.id], 8))


def test_a_percentile_is_one_of_the_measured_values() -> None:
    assert percentile([float(number) for number in range(1, 21)], 0.95) == 19
    assert percentile([3.0], 0.95) == 3
