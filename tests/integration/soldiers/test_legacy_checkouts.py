"""Checkouts that the version before has made are used as they are."""

from pathlib import Path

from kingdom.soldiers.checkouts.checkout import GitPolicy, git_directory_of
from kingdom.soldiers.checkouts.legacy_checkouts import migrate_legacy_checkouts
from kingdom.soldiers.checkouts.repository import Repository
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, files_of, run


async def made_by_the_version_before(host: Path, source: Path) -> CheckoutSpec:
    """Return a checkout with a commit and a dirty file, as a worktree of a clone that is named by its Git alone."""
    tree = a_tree(host, source)
    clone = host / "repositories" / "app.git"
    repository = Repository(clone, url=str(source), home=host)
    async with repository.locked():
        await repository.fetch("main")
    run("worktree", "add", "--quiet", "-b", tree.branch, str(tree.path), "refs/remotes/origin/main", cwd=clone)
    run("update-ref", tree.start_ref, "refs/remotes/origin/main", cwd=clone)
    (tree.path / "done.txt").write_text("done\n")
    run("add", "--all", cwd=tree.path)
    run("commit", "--quiet", "-m", "done", cwd=tree.path)
    (tree.path / "dirty.txt").write_text("dirty\n")
    return tree


async def test_a_worktree_of_the_version_before_is_taken_over_with_its_work(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = await made_by_the_version_before(host, source)
    files, branch = files_of(tree.path), run("rev-parse", "HEAD", cwd=tree.path)
    assert await migrate_legacy_checkouts(host / "repositories", home=host, git_policy=GitPolicy()) == 1
    assert files_of(tree.path) == files
    assert (tree.path / ".git").read_text() == f"gitdir: {git_directory_of(tree.path)}\n"
    assert run("status", "--porcelain", cwd=tree.path) == "?? dirty.txt"
    assert list((bare(host, tree) / "worktrees").iterdir()) == []
    await trees.prepare([tree])
    commits = await trees.commit([tree], "more")
    assert run("rev-parse", f"{commits[tree.id]}^", cwd=bare(host, tree)) == branch
    await trees.roll_back([tree], {}, [tree.id], "r1")
    assert files_of(tree.path) == files_of(source)


async def test_it_is_taken_over_once_and_again_where_that_was_interrupted(host: Path, source: Path) -> None:
    tree = await made_by_the_version_before(host, source)
    git_directory_of(tree.path).mkdir(parents=True)
    assert [
        await migrate_legacy_checkouts(host / "repositories", home=host, git_policy=GitPolicy()) for _ in range(2)
    ] == [
        1,
        0,
    ]
    assert run("log", "-1", "--format=%s", cwd=tree.path) == "done"


async def test_one_that_is_on_no_branch_is_left_to_people(host: Path, source: Path) -> None:
    tree = await made_by_the_version_before(host, source)
    run("checkout", "--quiet", "--detach", cwd=tree.path)
    assert await migrate_legacy_checkouts(host / "repositories", home=host, git_policy=GitPolicy()) == 0
    assert (tree.path / "dirty.txt").exists()
