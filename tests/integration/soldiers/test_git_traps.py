"""Traps that an agent leaves in a checkout to make git read or run files that the agent cannot reach."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.files.removal import remove_tree
from tests.integration.soldiers.sources import a_tree, bare, make_source, run

PLANS = "the plans of another house"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A repository on this machine that the agent must not read."""
    path = make_source(tmp_path / "other")
    (path / "plans.txt").write_text(PLANS)
    run("add", "--all", cwd=path)
    run("commit", "--quiet", "-m", "plans", cwd=path)
    return path


@pytest.fixture
async def tree(trees: RunCheckouts, host: Path, source: Path) -> CheckoutSpec:
    made = a_tree(host, source)
    await trees.prepare([made])
    return made


async def released_without_leak(trees: RunCheckouts, host: Path, tree: CheckoutSpec, other: Path) -> bool:
    """Release a checkout. Return whether the clone, which the next agent reads, has nothing of the other repository."""
    # The release may refuse a checkout with a trap. Then a person must look at it.
    with suppress(ProgramFailed):
        await trees.release(tree, "end")
    objects = run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=bare(host, tree))
    return run("rev-parse", "HEAD:plans.txt", cwd=other) not in objects


def a_link(tree: CheckoutSpec, other: Path) -> None:
    (tree.path / "nested" / ".git").symlink_to(other / ".git")


def a_pointer(tree: CheckoutSpec, other: Path) -> None:
    (tree.path / "nested" / ".git").write_text(f"gitdir: {other}/.git\n")


def links_for_all_parts_of_the_git_directory(tree: CheckoutSpec, other: Path) -> None:
    git = tree.path / "nested" / ".git"
    git.mkdir()
    for name in ("objects", "refs", "HEAD", "packed-refs"):
        (git / name).symlink_to(other / ".git" / name)


def a_common_folder_elsewhere(tree: CheckoutSpec, other: Path) -> None:
    git = tree.path / "nested" / ".git"
    git.mkdir()
    (git / "commondir").write_text(f"{other}/.git\n")
    (git / "HEAD").write_text("ref: refs/heads/main\n")


def alternates_of_another_repository(tree: CheckoutSpec, other: Path) -> None:
    path = tree.path / "nested"
    run("init", "--quiet", "-b", "main", cwd=path)
    (path / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
    (path / ".git/refs/heads/main").write_text(run("rev-parse", "HEAD", cwd=other) + "\n")


@pytest.mark.parametrize(
    "lay",
    [
        a_link,
        a_pointer,
        links_for_all_parts_of_the_git_directory,
        a_common_folder_elsewhere,
        alternates_of_another_repository,
    ],
)
async def test_a_nested_repository_brings_nothing_from_another_repository(
    trees: RunCheckouts, host: Path, tree: CheckoutSpec, other: Path, lay: object
) -> None:
    (tree.path / "nested").mkdir()
    assert callable(lay)
    lay(tree, other)
    (tree.path / "nested" / "file").write_text("mine\n")
    assert await released_without_leak(trees, host, tree, other)


async def test_a_submodule_that_became_a_link_is_not_followed(
    trees: RunCheckouts, host: Path, tmp_path: Path, other: Path
) -> None:
    source = make_source(tmp_path / "with-submodule")
    commit = run("rev-parse", "HEAD", cwd=source)
    run("update-index", "--add", "--cacheinfo", f"160000,{commit},sub", cwd=source)
    run("commit", "--quiet", "-m", "submodule", cwd=source)
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "sub").rmdir()
    (tree.path / "sub").symlink_to(other)
    assert await released_without_leak(trees, host, tree, other)
    assert (other / "plans.txt").exists()


@pytest.mark.parametrize("kind", ["link", "pointer", "pipe"])
async def test_a_changed_pointer_of_the_checkout_is_restored(
    trees: RunCheckouts, tree: CheckoutSpec, other: Path, kind: str
) -> None:
    link = tree.path / ".git"
    before = link.read_text()
    link.unlink()
    if kind == "link":
        link.symlink_to(other / ".git")
    elif kind == "pipe":
        os.mkfifo(link)
    else:
        link.write_text(f"gitdir: {other}/.git\n")
    (tree.path / "new.txt").write_text("mine\n")
    before_there = run("rev-parse", "HEAD", cwd=other)
    await trees.commit([tree], "work")
    assert link.read_text() == before
    assert not link.is_symlink()
    assert run("rev-parse", "HEAD", cwd=other) == before_there


@pytest.mark.parametrize("name", ["objects/info/alternates", "info/exclude", "info/grafts"])
async def test_files_that_affect_all_checkouts_are_removed(
    trees: RunCheckouts, host: Path, tree: CheckoutSpec, name: str
) -> None:
    planted = bare(host, tree) / name
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("*\n" if "exclude" in name else "")
    (tree.path / "new.txt").write_text("mine\n")
    await trees.commit([tree], "work")
    assert not planted.exists()
    assert run("show", "HEAD:new.txt", cwd=tree.path) == "mine"


async def test_a_replaced_object_is_not_trusted(trees: RunCheckouts, tree: CheckoutSpec) -> None:
    (tree.path / "file0.txt").write_text("harmless\n")
    start = (await trees.commit([tree], "work"))[tree.id]
    (tree.path / "file0.txt").write_text("evil\n")
    evil = (await trees.commit([tree], "more"))[tree.id]
    run("replace", start, evil, cwd=tree.path)
    await trees.roll_back([tree], {tree.id: start}, [], "r1")
    assert (tree.path / "file0.txt").read_text() == "harmless\n"


async def test_pipes_and_links_in_a_checkout_are_neither_read_nor_followed(
    trees: RunCheckouts, host: Path, tree: CheckoutSpec, other: Path
) -> None:
    os.mkfifo(tree.path / "pipe")
    (tree.path / "link.txt").symlink_to(other / "plans.txt")
    (tree.path / "folder").symlink_to(other)
    (tree.path / "file0.txt").unlink()
    (tree.path / "file0.txt").symlink_to(other / "plans.txt")
    base = await trees.base_commit(tree)
    await trees.commit([tree], "work")
    assert PLANS not in await trees.diff(tree, base)
    await trees.roll_back([tree], {}, [tree.id], "r1")
    assert (other / "plans.txt").read_text() == PLANS
    assert await released_without_leak(trees, host, tree, other)


async def test_a_checkout_with_very_deep_and_forbidden_folders_is_removed(tree: CheckoutSpec) -> None:
    place = os.open(tree.path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 50 + ".log", dir_fd=place)
        inner = os.open("d" * 50 + ".log", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    remove_tree(tree.path)
    assert not tree.path.exists()


def test_removing_a_folder_keeps_the_targets_of_links_in_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (tmp_path / "gone" / "shut").mkdir(parents=True)
    (tmp_path / "gone" / "shut" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "gone" / "shut").chmod(0)
    remove_tree(tmp_path / "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
