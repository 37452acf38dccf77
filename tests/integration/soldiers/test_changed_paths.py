"""The changed paths of a checkpoint, by which protected paths are found, are read from the clone of the host."""

from pathlib import Path

from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, checkpointed, make_source


async def test_the_list_of_changed_paths_is_complete_or_missing_if_it_is_too_long(
    trees: RunCheckouts, host: Path, tmp_path: Path
) -> None:
    tree = a_tree(host, make_source(tmp_path / "app", 3))
    await trees.prepare([tree])
    (tree.path / "file0.txt").write_text("changed\n")
    (tree.path / "file1.txt").unlink()
    (tree.path / ".github").mkdir()
    (tree.path / "file2.txt").rename(tree.path / ".github" / "ä\n.yml")
    (tree.path / "build.log").write_text("ignored\n")
    commits = await checkpointed(trees, [tree], "c1", "work")
    changed = [".github/ä\n.yml", "file0.txt", "file1.txt", "file2.txt"]
    assert await trees.changed_paths([tree], commits) == {tree.id: changed}
    for number in range(100):
        (tree.path / f"{number:0>200}.txt").touch()
    assert await trees.changed_paths([tree], await checkpointed(trees, [tree], "c2", "more")) == {}
