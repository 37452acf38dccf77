"""The bench of the sandbox keeps its bound, and can fail."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.sandbox", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_a_start_with_a_sandbox_keeps_its_bound() -> None:
    # Other tests run at the same time, so that this bound is wider than that of the bench itself.
    done = bench("--pairs", "4", "--bound", "2")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holds"]
    assert set(told["fastest seconds"]) == {"with", "without"}


@pytest.mark.slow
def test_a_sandbox_that_is_slow_ends_the_bench_with_a_complaint() -> None:
    done = bench("--pairs", "1", "--handicap", "600")
    assert done.returncode == 1, done.stdout
    assert "bound not kept: start with a sandbox: " in done.stderr
    assert not json.loads(done.stdout.splitlines()[-1])["holds"]
