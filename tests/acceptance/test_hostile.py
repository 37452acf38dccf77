"""The bench of hostile inputs keeps its bounds in its short form, and can fail."""

import json
from pathlib import Path

import pytest

from tests.benches import bench

SHORT = ("hostile", "--count", "150")


@pytest.mark.benches
def test_the_short_form_finds_nothing_and_ends_with_its_figures() -> None:
    done = bench(*SHORT, "--json", "-", ends_with=0)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["holds"]
    assert report["inputs"] == sum(report["classes"].values()) == 151
    assert report["classes"]["genuine"] > 1


@pytest.mark.benches
def test_the_bench_fails_if_the_receiver_skips_the_signature(tmp_path: Path) -> None:
    report = tmp_path / "hostile.json"
    done = bench(*SHORT, "--variant", "trusting", "--json", report, ends_with=1)
    assert "breach: signature: " in done.stderr
    assert not json.loads(report.read_text())["holds"]
