"""Commits of a checkout, and the kept commits of its agent."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy, git_directory_of
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, run


def a_file_becomes_a_folder(path: Path) -> None:
    (path / "file0.txt").unlink()
    (path / "file0.txt").mkdir()
    (path / "file0.txt" / "inner").write_text("inner\n")


def a_folder_becomes_a_file(path: Path) -> None:
    shutil.rmtree(path / "folder")
    (path / "folder").write_text("now a file\n")


def a_folder_becomes_a_link(path: Path) -> None:
    (path / "folder").rename(path / "moved")
    (path / "folder").symlink_to("moved")


def a_link_becomes_a_folder(path: Path) -> None:
    (path / "link").unlink()
    (path / "link").mkdir()
    (path / "link" / "inner").write_text("inner\n")


def a_file_becomes_a_link_and_runs(path: Path) -> None:
    (path / "file0.txt").unlink()
    (path / "file0.txt").symlink_to("file1.txt")
    (path / "file1.txt").chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [
        a_file_becomes_a_folder,
        a_folder_becomes_a_file,
        a_folder_becomes_a_link,
        a_link_becomes_a_folder,
        a_file_becomes_a_link_and_runs,
    ],
)
async def test_every_change_of_files_is_committed_as_git_would(
    trees: RunCheckouts, host: Path, source: Path, change: Callable[[Path], None]
) -> None:
    (source / "folder").mkdir()
    (source / "folder" / "file").write_text("in a folder\n")
    (source / "link").symlink_to("file0.txt")
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "second", cwd=source)
    tree = a_tree(host, source)
    await trees.prepare([tree])
    for path in (tree.path, source):
        change(path)
    run("add", "--all", cwd=source)
    commits = await trees.commit([tree], "changed")
    assert run("rev-parse", f"{commits[tree.id]}^{{tree}}", cwd=bare(host, tree)) == run("write-tree", cwd=source)
    assert await trees.changed_files([tree]) == []
    await trees.roll_back([tree], {}, [tree.id], "r1")
    assert run("status", "--porcelain", cwd=tree.path) == ""


async def test_after_a_commit_the_files_have_the_bytes_of_a_new_checkout(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    (source / ".gitattributes").write_text("*.sh ident\n*.bat eol=crlf\n")
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "attributes", cwd=source)
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "run.sh").write_text("# $Id: exit 0 $\nexit 1\n")
    (tree.path / "run.sh").chmod(0o755)
    (tree.path / "run.bat").write_text("exit 1\n")
    await trees.commit([tree], "work")
    assert "exit 0" not in (tree.path / "run.sh").read_text()
    assert os.access(tree.path / "run.sh", os.X_OK)
    assert (tree.path / "run.bat").read_bytes() == b"exit 1\r\n"
    assert await trees.changed_files([tree]) == []
    # To git, both files are unchanged.
    (tree.path / "run.sh").write_text("# $Id: exit 0 $\nexit 1\n")
    (tree.path / "run.bat").write_text("exit 1\n")
    assert await trees.changed_files([tree]) == ["app/run.bat", "app/run.sh"]


async def test_names_that_git_refuses_are_reported(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / ".GIT").mkdir()
    (tree.path / ".GIT" / "config").write_text("not for git\n")
    with pytest.raises(ProgramFailed, match=r"git refuses some names: .*\.GIT/config"):
        await trees.commit([tree], "work")


async def test_amended_and_stashed_commits_on_no_branch_are_kept(host: Path, source: Path) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    for name in ("amended", "stashed first", "stashed second"):
        (tree.path / "file0.txt").write_text(name)
        if name == "amended":
            run("commit", "--quiet", "-am", name, cwd=tree.path)
            (tree.path / "file1.txt").write_text(name)
            run("commit", "--quiet", "--amend", "-am", "other words", cwd=tree.path)
        else:
            run("stash", "push", "--quiet", "-m", name, cwd=tree.path)
    run("checkout", "--quiet", "--orphan", "unborn", cwd=tree.path)
    refs = await trees.release(tree, "end")
    kept = run("log", "--format=%s", *refs, cwd=bare(host, tree))
    assert {"amended", "other words"} < {*kept.splitlines()}
    assert "stashed first" in kept
    assert "stashed second" in kept


async def test_a_git_tree_that_does_not_match_its_name_is_not_trusted(host: Path, source: Path) -> None:
    (source / "folder").mkdir()
    (source / "folder" / "policy").write_text("nobody\n")
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "policy", cwd=source)
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    own = git_directory_of(tree.path) / "objects"
    (tree.path / "folder" / "policy").write_text("everybody\n")
    run("add", "--all", cwd=tree.path)
    hostile = run("write-tree", "--prefix=folder", cwd=tree.path)
    honest = run("rev-parse", "HEAD:folder", cwd=tree.path)
    forged = own / honest[:2] / honest[2:]
    forged.parent.mkdir(exist_ok=True)
    forged.write_bytes((own / hostile[:2] / hostile[2:]).read_bytes())
    commits = await trees.commit([tree], "work")
    assert run("show", f"{commits[tree.id]}:folder/policy", cwd=bare(host, tree)) == "everybody"
    assert (tree.path / "folder" / "policy").read_text() == "everybody\n"


async def test_commits_and_files_of_an_agent_are_kept_when_its_checkout_is_released(host: Path, source: Path) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    for name in ("one", "two"):
        run("commit", "--quiet", "--allow-empty", "-m", name, cwd=tree.path)
    run("branch", "aside", cwd=tree.path)
    run("checkout", "--quiet", "--detach", "HEAD~2", cwd=tree.path)
    (tree.path / "three.txt").write_text("three\n")
    await trees.commit([tree], "three")
    assert run("log", "-2", "--format=%s", tree.branch, cwd=bare(host, tree)).splitlines() == ["three", "first"]
    (ref,) = await trees.release(tree, "end")
    assert run("log", "-2", "--format=%s", ref, cwd=bare(host, tree)).splitlines() == ["two", "one"]


@pytest.mark.parametrize(
    ("message", "added"), [("Fix it [CI skip]", 1), ("Fix it\n\nskip-checks: true", 1), ("Fix", 0)]
)
async def test_a_commit_of_an_agent_that_ci_would_skip_gets_a_commit_on_top(
    host: Path, source: Path, message: str, added: int
) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "file0.txt").write_text("fixed\n")
    run("commit", "--quiet", "-am", message, cwd=tree.path)
    agents = run("rev-parse", "HEAD", cwd=tree.path).strip()
    [made] = (await trees.commit([tree], "work")).values()
    assert run("rev-list", "--count", f"{agents}..{made}", cwd=bare(host, tree)).strip() == str(added)
    assert run("diff", agents, made, cwd=bare(host, tree)) == ""
    assert [*(await trees.commit([tree], "work")).values()] == [made]
