"""The bench of the engine keeps its bounds in its short form, and can fail."""

import json
from pathlib import Path

import pytest

from tests.benches import bench

SHORT = ("engine", "--quick")
BOUNDED = {"statements per Task, growth", "buffers per Task, growth"}


@pytest.mark.benches
def test_the_short_form_keeps_every_limit_and_ends_with_its_figures() -> None:
    done = bench(*SHORT, "--json", "-", ends_with=0)
    report = json.loads(done.stdout.splitlines()[-1])
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert report["holds"]
    assert {name for name, figure in figures.items() if "bound" in figure} == BOUNDED
    # Other tests run at the same time, so only the long form, on its own machine, must be faster than its peer.
    assert figures["durable steps, multiple of dbos"]["value"] > 0
    assert set(report["durable steps per second"]) == {"kingdom", "dbos"}
    assert figures["statements per Task, 10 stored runs"]["value"] > 1


@pytest.mark.benches
def test_the_bench_fails_if_the_engine_scans_all_runs_at_every_step(tmp_path: Path) -> None:
    report = tmp_path / "engine.json"
    done = bench(*SHORT, "--only", "counts", "--variant", "scan", "--json", report, ends_with=1)
    assert "bound not kept: buffers per Task, growth: " in done.stderr
    document = json.loads(report.read_text())
    assert not document["holds"]
    assert "buffers per Task, growth" in {words.partition(":")[0] for words in document["failed"]}


@pytest.mark.benches
def test_the_bench_fails_if_the_engine_is_slower_than_demanded_relative_to_dbos() -> None:
    done = bench(*SHORT, "--only", "speed", "--runs", "10", "--demand", "1000", ends_with=1)
    assert "bound not kept: durable steps, multiple of dbos: " in done.stderr


@pytest.mark.benches
def test_the_bench_fails_if_the_engine_needs_too_many_statements() -> None:
    done = bench(*SHORT, "--only", "counts", "--demand", "5", ends_with=1)
    assert "bound not kept: statements per Task, 10 stored runs: " in done.stderr
