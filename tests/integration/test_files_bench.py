"""The bench of the bus on files: its short form runs, its comparison is fair, and it can fail."""

import json
from pathlib import Path

import pytest

from bench.files.bare import Bare, record
from bench.files.claims import calls_between_marks
from bench.files.figures import Figures
from tests.benches import bench

SHORT = ("files", "--quick")
BOUNDED = {
    "publish 1, share of the bare loop in a thread",
    "publish 100, share of the bare loop",
    "drain, share of the bare loop",
    "drain, multiple of persist-queue SQLiteAckQueue",
    "drain, multiple of persist-queue Queue(autosave)",
    "drain, multiple of litequeue",
    "drain, multiple of litequeue, synchronous=FULL",
    "system calls of a claim, growth",
    "syncs of a publish of 100 events",
    "wake-up p50, multiple of a bare watchfiles loop",
}


@pytest.mark.benches
def test_the_short_form_keeps_every_limit_and_ends_with_its_figures() -> None:
    # A short run has a weaker bound.
    done = bench(*SHORT, "--demand", "0.25", ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["holds"]
    assert {figure["name"] for figure in figures["figures"] if "bound" in figure} == BOUNDED
    assert figures["operations of the bare loop"]["publish 1"]["sync_file"] == 1
    assert figures["operations of the bare loop"]["claim"].get("sync_file") is None
    assert "synced" in figures["durability"]["kingdom"]


@pytest.mark.benches
@pytest.mark.parametrize(
    ("variant", "part", "caught_by"),
    [
        ("syncs-every-file", "speed", "drain, share of the bare loop"),
        ("syncs-every-file", "claims", "syncs of a publish of 100 events"),
        ("lists-the-directory", "claims", "system calls of a claim, growth"),
        ("polls", "wake-ups", "wake-up p50, multiple of a bare watchfiles loop"),
    ],
)
def test_a_bus_that_is_too_slow_fails_the_bench(variant: str, part: str, caught_by: str) -> None:
    done = bench(*SHORT, "--only", part, "--variant", variant, ends_with=1)
    assert f"bound not kept: {caught_by}: " in done.stderr
    assert not json.loads(done.stdout.splitlines()[-1])["holds"]


async def test_the_bare_loop_leaves_the_same_files_as_the_bus(tmp_path: Path) -> None:
    script = await record(tmp_path / "bus", [1, 1, 3])
    bare = Bare(tmp_path / "bare", script, envelopes=True)
    for step in script.steps:
        bare.prepare(step)()
    bare.close()
    assert contents(tmp_path / "bare") == contents(tmp_path / "bus")
    assert [step.name for step in script.steps] == ["publish 1", "publish 1", "publish 3", "claim", "settle"]


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a store except the lock and the wake-up files, which are not written by its disk."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if name != "bus/lock" and not name.startswith("bus/wake/")
    }


def test_each_system_call_between_marks_is_counted_once_except_waits_for_threads() -> None:
    log = """\
7 read(0, "go", 2) = 2
7 access("/kingdom-bench-mark", F_OK) = -1 ENOENT (No such file or directory)
7 openat(AT_FDCWD, "a", O_RDONLY) = 3
8 futex(0x1, FUTEX_WAIT <unfinished ...>
7 rename("a", <unfinished ...>
8 <... futex resumed>) = 0
7 <... rename resumed>"b") = 0
7 access("/kingdom-bench-mark", F_OK) = -1 ENOENT (No such file or directory)
7 write(1, "", 0) = 0
7 access("/kingdom-bench-mark", F_OK) = -1 ENOENT (No such file or directory)
7 +++ exited with 0 +++
7 access("/kingdom-bench-mark", F_OK) = -1 ENOENT (No such file or directory)
"""
    assert calls_between_marks(log) == [2, 0]


def test_a_figure_beyond_its_bound_is_reported() -> None:
    figures = Figures()
    figures.note("drain", 0.59, at_least=0.6)
    figures.note("growth", 1.6, at_most=1.5)
    figures.note("told only", 0.0)
    assert figures.complaints() == [
        "drain: 0.59, but must be at least 0.6",
        "growth: 1.60, but must be at most 1.5",
    ]


def test_a_figure_that_is_not_a_number_is_reported() -> None:
    figures = Figures()
    figures.note("drain", float("nan"), at_least=0.6)
    assert figures.complaints()


def test_a_bench_without_any_bound_is_reported() -> None:
    figures = Figures()
    figures.note("told only", 1.0)
    assert figures.complaints() == ["nothing was measured that has a bound"]


def test_a_lower_demand_relaxes_both_kinds_of_bound() -> None:
    figures = Figures(0.5)
    figures.note("drain", 0.31, at_least=0.6)
    figures.note("growth", 2.9, at_most=1.5)
    assert figures.complaints() == []
