"""Checkouts that an earlier version made are migrated, and keep their files and commits."""

from pathlib import Path

from kingdom.soldiers.checkouts.checkout import GitPolicy, git_directory_of
from kingdom.soldiers.checkouts.legacy_checkouts import migrate_legacy_checkouts
from kingdom.soldiers.checkouts.repository import Repository
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, files_of, run


async def make_legacy_checkout(host: Path, source: Path) -> CheckoutSpec:
    """Make a worktree with a commit and a dirty file, of a clone whose folder name lacks the address."""
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


async def test_a_legacy_checkout_is_migrated_with_its_commits_and_changed_files(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = await make_legacy_checkout(host, source)
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


async def test_an_interrupted_migration_of_a_checkout_is_completed_and_not_repeated(host: Path, source: Path) -> None:
    tree = await make_legacy_checkout(host, source)
    git_directory_of(tree.path).mkdir(parents=True)
    assert [
        await migrate_legacy_checkouts(host / "repositories", home=host, git_policy=GitPolicy()) for _ in range(2)
    ] == [
        1,
        0,
    ]
    assert run("log", "-1", "--format=%s", cwd=tree.path) == "done"


async def test_a_legacy_checkout_on_no_branch_is_not_migrated(host: Path, source: Path) -> None:
    tree = await make_legacy_checkout(host, source)
    run("checkout", "--quiet", "--detach", cwd=tree.path)
    assert await migrate_legacy_checkouts(host / "repositories", home=host, git_policy=GitPolicy()) == 0
    assert (tree.path / "dirty.txt").exists()
