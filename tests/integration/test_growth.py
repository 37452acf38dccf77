"""The growth bench: its short form keeps its bounds, and it can fail."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.growth.figures import Figures
from bench.growth.lab import QUICK, TEMPLATE, Lab
from bench.growth.scenarios import SCENARIOS
from bench.growth.variants import VARIANTS
from bench.postgres import PrivateCluster
from tests.benches import bench

SHORT = ("growth", "--quick")
CAUGHT_BY = {
    "by-creation": ("streams", "claim, four streams"),
    "any-stream": ("streams", "claim, four streams"),
    "no-watermark": ("pinned", "claim, xmin pinned"),
    "volatile-now": ("idle", "claim, ordered, idle"),
    "look-from-the-start": ("pinned-key", "settle 1 ordered event, xmin pinned"),
}


@pytest.mark.benches
def test_the_short_form_keeps_every_limit_and_draws_its_plot(tmp_path: Path) -> None:
    plot = tmp_path / "growth.png"
    done = bench(*SHORT, "--plot", plot, ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["holds"]
    assert figures["failed"] == []
    assert {row["name"] for row in figures["rows"] if row["limit"] == 450} >= {"claim", "claim, xmin pinned"}
    assert all(len(row["points"]) >= 2 for row in figures["rows"] if row["flat"])
    assert "pinned xmin" in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.benches
def test_a_statement_that_does_not_scale_ends_the_bench_with_its_name(tmp_path: Path) -> None:
    report = tmp_path / "growth.json"
    spoilt = ("--variant", "by-creation", "--only", "streams")
    done = bench(*SHORT, *spoilt, "--json", report, "--plot", tmp_path / "growth.png", ends_with=1)
    assert not json.loads(report.read_text())["holds"]
    assert "bound not kept: claim, four streams: " in done.stderr


@pytest.fixture(scope="module")
def template(cluster: PrivateCluster) -> Iterator[None]:
    Lab(cluster, QUICK).prepare()
    yield
    cluster.drop_database(TEMPLATE)


@pytest.mark.variants
@pytest.mark.usefixtures("template")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_statement_that_does_not_scale_is_caught(cluster: PrivateCluster, variant: str) -> None:
    scenario, row = CAUGHT_BY[variant]
    lab = Lab(cluster, QUICK, variant=VARIANTS[variant])
    asyncio.run(SCENARIOS[scenario](lab))
    assert {words.partition(":")[0] for words in lab.figures.complaints()} == {row}


def test_a_row_that_exceeds_its_limit_fails() -> None:
    figures = Figures()
    row = figures.row("claim", "pending", limit=450)
    for size, buffers in ((10, 440), (100, 451)):
        row.note(size, [buffers])
    assert figures.complaints() == ["claim: 451 buffers, at most 450 are allowed"]


def test_a_row_that_grows_fails() -> None:
    figures = Figures()
    row = figures.row("settle", "pending")
    for size, buffers in ((10, 100), (100, 151)):
        row.note(size, [buffers])
    assert figures.complaints() == ["settle: grows 1.51 times, at most 1.5 are allowed"]


@pytest.mark.parametrize(("buffers", "grows"), [((269, 188, 178), False), ((269, 100, 151), True)])
def test_a_row_whose_cost_falls_passes_unless_it_grows_again(buffers: tuple[int, ...], *, grows: bool) -> None:
    figures = Figures()
    row = figures.row("claim", "pending")
    for size, each in enumerate(buffers):
        row.note(size, [each])
    assert bool(figures.complaints()) == grows


def test_a_row_that_was_measured_at_one_size_only_fails() -> None:
    figures = Figures()
    figures.row("claim", "pending", limit=450).note(10, [1])
    assert len(figures.complaints()) == 1


def test_the_highest_of_several_measurements_is_used() -> None:
    row = Figures().row("claim", "pending")
    row.note(10, [3, 5])
    row.note(10, [4])
    row.note(20, [])
    assert row.points == {10: 5}
