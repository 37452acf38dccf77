"""Diffs between two commits of a run, from the clone of its host."""

from pathlib import Path

import pytest

from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from kingdom.soldiers.host import run_diffs
from kingdom.soldiers.host.run_diffs import RunDiffs
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import SoldierSettings
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import HostScene, writes
from tests.integration.soldiers.sources import a_tree


async def test_a_diff_compares_commits_and_not_the_files_of_the_agent(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    base = await trees.base_commit(tree)
    (tree.path / "file0.txt").write_text("changed\n")
    commit = (await trees.commit([tree], "Change"))[tree.id]
    (tree.path / "file0.txt").write_text("not committed\n")
    diff = await trees.diff_commits(tree, base, commit, 10_000)
    assert "+changed" in diff
    assert "not committed" not in diff
    assert await trees.diff_commits(tree, commit, commit, 10_000) == ""


async def test_a_diff_that_is_too_long_is_cut_while_git_writes_it(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    base = await trees.base_commit(tree)
    (tree.path / "long.txt").write_text("a line of text\n" * 300_000)
    commit = (await trees.commit([tree], "Add"))[tree.id]
    whole = await trees.diff_commits(tree, base, commit, None)
    cut = await trees.diff_commits(tree, base, commit, 100_000)
    assert len(whole) > 4_000_000
    assert cut == whole[:100_000]


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_a_cut_diff_of_a_run_on_this_machine_says_so(scene: HostScene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.start_host()
    workflow = await scene.begin(writes("one"))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    diffs = RunDiffs(scene.bus, None, SoldierSettings(sandbox=SandboxProfile.OFF))
    (point,) = completed.checkpoints
    (live,), (of_clone,) = await diffs.current(completed), await diffs.of_checkpoint(completed, point, "base")
    assert live.diff == of_clone.diff
    assert (live.note, of_clone.note) == ("", f"as of checkpoint {point.id}")

    length = len(live.diff) - 1
    monkeypatch.setattr(run_diffs, "LOCAL_DIFF_BYTES_MAX", length)
    (cut,), (of_clone,) = await diffs.current(completed), await diffs.of_checkpoint(completed, point, "base")
    assert cut.diff == of_clone.diff == live.diff[:length]
    assert (cut.note, of_clone.note) == ("cut after 64 MiB", f"as of checkpoint {point.id}; cut after 64 MiB")
