"""Diffs between two commits of a run, from the clone of its host."""

from pathlib import Path

from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
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
