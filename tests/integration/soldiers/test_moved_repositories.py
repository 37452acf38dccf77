"""A checkout stays with the clone from which it was created, also if its repository gets another address."""

from dataclasses import replace
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, run


async def test_a_checkout_is_used_and_released_after_its_repository_got_another_address(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "file0.txt").write_text("changed\n")
    moved = replace(tree, url=str(tmp_path / "moved"))
    await trees.prepare([moved])
    commits = await trees.commit([moved], "work")
    (tree.path / "file2.txt").write_text("not committed\n")
    [rescued] = await trees.release(moved, "end")
    assert not tree.path.exists()
    assert run("rev-parse", f"{rescued}~1", cwd=bare(host, tree)) == commits[tree.id]


async def test_a_checkout_without_its_clone_is_not_reported_as_released(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    # Earlier versions did not record the clone.
    (tree.path.with_name(f".{tree.path.name}") / "clone").unlink()
    with pytest.raises(ProgramFailed, match="the address of app may have changed: set the earlier address"):
        await trees.release(replace(tree, url=str(tmp_path / "moved")), "end")
    assert await trees.release(tree, "end") == ()
    assert not tree.path.exists()
