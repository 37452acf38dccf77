"""The bench of the sandbox keeps its bound, and can fail."""

import json
import shutil

import pytest

from tests.benches import bench

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.benches
def test_a_start_with_a_sandbox_keeps_its_bound() -> None:
    # So few starts are held to a wider bound than that of the bench itself.
    done = bench("sandbox", "--pairs", "4", "--bound", "3", ends_with=0)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holds"]
    assert set(told["fastest seconds"]) == {"with", "without"}


@pytest.mark.benches
def test_a_sandbox_that_is_slow_ends_the_bench_with_a_complaint() -> None:
    done = bench("sandbox", "--pairs", "1", "--handicap", "600", ends_with=1)
    assert "bound not kept: start with a sandbox: " in done.stderr
    assert not json.loads(done.stdout.splitlines()[-1])["holds"]
