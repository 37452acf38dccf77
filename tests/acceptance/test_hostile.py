"""The bench of hostile inputs keeps its bounds in its short form, and can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.hostile", "--count", "150", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_the_short_form_finds_nothing_and_ends_with_its_figures() -> None:
    done = bench("--json", "-")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holds"]
    assert told["inputs"] == sum(told["classes"].values()) == 151
    assert told["classes"]["genuine"] > 1


@pytest.mark.slow
def test_a_receiver_that_skips_the_signature_ends_the_bench_with_a_complaint(tmp_path: Path) -> None:
    report = tmp_path / "hostile.json"
    done = bench("--variant", "trusting", "--json", report)
    assert done.returncode == 1, done.stdout
    assert "breach: signature: " in done.stderr
    assert not json.loads(report.read_text())["holds"]
