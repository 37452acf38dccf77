"""Repositories that agents make or clone inside of a checkout."""

import shutil
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, make_source, run


def nested_work(path: Path) -> str:
    """Make a repository with two branches, a stash and a dirty file; return the commit of the other branch."""
    make_source(path, files=2)
    run("checkout", "--quiet", "-b", "other", cwd=path)
    run("commit", "--quiet", "--allow-empty", "-m", "other", cwd=path)
    other = run("rev-parse", "HEAD", cwd=path)
    run("checkout", "--quiet", "main", cwd=path)
    (path / "file0.txt").write_text("stashed\n")
    run("stash", "--quiet", cwd=path)
    (path / "file1.txt").write_text("dirty\n")
    return other


@pytest.mark.parametrize("linked", [False, True], ids=["untracked", "linked by its agent"])
async def test_releasing_keeps_repositories_that_an_agent_made_in_the_checkout(
    trees: RunCheckouts, host: Path, source: Path, *, linked: bool
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    other = nested_work(tree.path / "some folder" / "nested")
    make_source(tree.path / "some folder" / "nested" / "deeper")
    run("init", "--quiet", "-b", "main", "unborn", cwd=tree.path)
    (tree.path / "unborn" / "new.txt").write_text("new\n")
    if linked:
        run("add", "some folder/nested", cwd=tree.path)
    await trees.commit([tree], "work")

    refs = await trees.release(tree, "end")

    assert not tree.path.exists()
    where = bare(host, tree)
    contents = {frozenset(run("ls-tree", "-r", "--name-only", ref, cwd=where).splitlines()): ref for ref in refs}
    assert set(contents) == {
        frozenset({".gitignore", "file0.txt", "file1.txt"}),
        frozenset({".gitignore", "file0.txt"}),
        frozenset({"new.txt"}),
    }
    nested = contents[frozenset({".gitignore", "file0.txt", "file1.txt"})]
    assert run("show", f"{nested}:file1.txt", cwd=where) == "dirty"
    assert run("show", f"{nested}^1:file1.txt", cwd=where) == "line 1"
    assert other in run("rev-list", nested, cwd=where).splitlines()
    assert "stashed" in run("log", "-m", "-p", "--format=", nested, cwd=where)
    assert "some folder/nested" in run("log", "-1", "--format=%s", nested, cwd=where)


async def test_releasing_keeps_the_commits_of_a_repository_in_the_place_of_the_checkout(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / ".git").unlink()
    run("init", "--quiet", cwd=tree.path)
    run("add", "--all", cwd=tree.path)
    run("commit", "--quiet", "-m", "mine", cwd=tree.path)
    (ref,) = await trees.release(tree, "end")
    assert run("log", "--format=%s", f"{ref}^1", cwd=bare(host, tree)) == "mine"


async def test_a_repository_that_cannot_be_kept_prevents_the_release(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    other = make_source(host / "sources" / "other")
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=other)
    tree = a_tree(host, source)
    await trees.prepare([tree])
    run("clone", "--quiet", "--depth", "1", f"file://{other}", "shallow", cwd=tree.path)
    with pytest.raises(ProgramFailed, match=r"trees/tree1/shallow.* cannot be kept: push or copy"):
        await trees.release(tree, "end")
    assert (tree.path / "shallow" / "file0.txt").exists()
    shutil.rmtree(tree.path / "shallow")
    assert await trees.release(tree, "end") == ()
    assert not tree.path.exists()


@pytest.mark.parametrize("linked", [False, True], ids=["untracked", "linked by its agent"])
async def test_programs_in_the_configuration_of_a_nested_repository_are_not_run(
    trees: RunCheckouts, host: Path, source: Path, *, linked: bool
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    nested = make_source(tree.path / "nested")
    if linked:
        run("add", "nested", cwd=tree.path)
    evil = f"touch {host}/was-run; cat"
    for key in ("core.fsmonitor", "uploadpack.packObjectsHook", "filter.evil.clean"):
        run("config", key, evil, cwd=nested)
    (nested / ".gitattributes").write_text("* filter=evil\n")
    # The same length as before, so only the content shows the change.
    (nested / "file0.txt").write_text("like 0\n")
    await trees.commit([tree], "work")
    (ref, *_) = await trees.release(tree, "end")
    assert run("show", f"{ref}:file0.txt", cwd=bare(host, tree)) == "like 0"
    assert not (host / "was-run").exists()


async def test_a_commit_records_the_current_commit_of_a_nested_repository(host: Path, source: Path) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    nested = make_source(tree.path / "nested")
    run("add", "nested", cwd=tree.path)
    run("commit", "--quiet", "-m", "link", cwd=tree.path)
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=nested)
    await trees.commit([tree], "work")
    assert run("rev-parse", "HEAD:nested", cwd=tree.path) == run("rev-parse", "HEAD", cwd=nested)
