"""The bench of the sandbox keeps its bounds, and can fail."""

import json
import shutil

import pytest

from tests.benches import bench

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.benches
def test_starts_and_commits_with_a_sandbox_keep_their_bounds() -> None:
    # So few measurements vary more, so their bounds are wider than those of the bench.
    few = ("--pairs", "4", "--bound", "3", "--commits", "2", "--commit-bound", "3")
    report = json.loads(bench("sandbox", *few, ends_with=0).stdout.splitlines()[-1])
    assert report["holds"]
    assert [set(report[what]["fastest seconds"]) for what in ("start", "commit")] == [{"with", "without"}] * 2


@pytest.mark.benches
def test_the_bench_fails_if_the_sandbox_is_slow() -> None:
    done = bench("sandbox", "--pairs", "1", "--commits", "1", "--handicap", "600", ends_with=1)
    for what in ("start", "commit"):
        assert f"bound not kept: {what} with a sandbox: " in done.stderr
    assert not json.loads(done.stdout.splitlines()[-1])["holds"]
