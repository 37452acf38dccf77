"""Checkouts of a run: prepared, committed, checkpointed, rolled back and released, with real repositories."""

import asyncio
import shutil
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy
from kingdom.soldiers.checkouts.run_checkouts import CheckoutFailed, CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, checkpointed, files_of, make_bare, make_source, run


def work_in(tree: CheckoutSpec) -> None:
    """Do what agents do: change, delete and add files."""
    (tree.path / "file0.txt").write_text("changed\n")
    (tree.path / "file1.txt").unlink()
    (tree.path / "new").mkdir()
    (tree.path / "new" / "file.txt").write_text("new\n")
    (tree.path / "build.log").write_text("ignored\n")


async def test_a_prepared_tree_is_on_its_branch_with_the_files_of_the_base(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)
    assert run("symbolic-ref", "HEAD", cwd=tree.path) == "refs/heads/kingdom/wf1/tree1"
    assert run("status", "--porcelain", cwd=tree.path) == ""
    assert await trees.base_commit(tree) == run("rev-parse", "main", cwd=source)


async def test_a_file_url_works_as_well(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source, url=f"file://{source}")
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)


async def test_a_tree_can_start_from_a_ref_that_is_not_a_branch(trees: RunCheckouts, host: Path, source: Path) -> None:
    run("commit", "--quiet", "--allow-empty", "-m", "Proposed", cwd=source)
    run("update-ref", "refs/pull/7/head", "HEAD", cwd=source)
    run("reset", "--quiet", "--hard", "HEAD~1", cwd=source)
    tree = a_tree(host, source, base_branch="refs/pull/7/head")
    await trees.prepare([tree])
    assert await trees.base_commit(tree) == run("rev-parse", "refs/pull/7/head", cwd=source)
    assert run("log", "-1", "--format=%s", "origin/main..HEAD", cwd=tree.path) == "Proposed"
    with pytest.raises(CheckoutFailed, match="refs/pull/8/head"):
        await trees.prepare([a_tree(host, source, "tree2", base_branch="refs/pull/8/head")])


async def test_if_one_checkout_cannot_be_created_none_is(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    run("branch", "release", cwd=make_source(tmp_path / "lib"))
    first = a_tree(host, source)
    second = a_tree(host, tmp_path / "lib", "tree2", base_branch="develop")
    with pytest.raises(CheckoutFailed, match=r"no branch 'develop'.*main, release") as failed:
        await trees.prepare([first, second])
    assert failed.value.work_tree_id == "wf1-tree2"
    assert list((host / "trees").iterdir()) == []
    assert run("for-each-ref", "refs/heads", "refs/kingdom", cwd=bare(host, first)) == ""
    assert len(run("worktree", "list", cwd=bare(host, first)).splitlines()) == 1


async def test_a_failed_prepare_does_not_change_existing_checkouts(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    first, second = a_tree(host, source), a_tree(host, source, "tree2", base_branch="develop")
    await trees.prepare([first])
    work_in(first)
    before = files_of(first.path)
    with pytest.raises(CheckoutFailed):
        await trees.prepare([first, second])
    assert files_of(first.path) == before


async def test_a_repository_without_commits_is_reported(trees: RunCheckouts, host: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckoutFailed, match="push a first commit"):
        await trees.prepare([a_tree(host, make_bare(tmp_path / "empty"))])


async def test_an_unreachable_repository_is_named_with_what_to_do(
    trees: RunCheckouts, host: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckoutFailed, match=r"nowhere could not be reached.*check the address"):
        await trees.prepare([a_tree(host, tmp_path / "nowhere")])


async def test_preparing_twice_keeps_the_work(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    before = files_of(tree.path)
    await trees.prepare([tree])
    assert files_of(tree.path) == before


async def test_the_start_commit_stays_the_same_when_the_base_branch_moves(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree, later = a_tree(host, source), a_tree(host, source, "later")
    await trees.prepare([tree])
    start = await trees.base_commit(tree)
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=source)
    await trees.prepare([tree, later])
    assert await trees.base_commit(tree) == start
    assert await trees.base_commit(later) == run("rev-parse", "main", cwd=source)


async def test_a_commit_has_untracked_files_but_no_ignored_ones(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    commits = await trees.commit([tree], "work")
    assert commits == {tree.id: run("rev-parse", "HEAD", cwd=tree.path)}
    names = run("ls-tree", "-r", "--name-only", "HEAD", cwd=tree.path).splitlines()
    assert names == [".gitignore", "file0.txt", "file2.txt", "new/file.txt"]
    assert run("log", "-1", "--format=%an <%ae> %s", cwd=tree.path) == "Kingdom <kingdom@localhost> work"
    assert await trees.commit([tree], "nothing new") == commits


async def test_a_repository_inside_the_checkout_does_not_prevent_commits(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    make_source(tree.path / "inside")
    run("init", "--quiet", str(tree.path / "unborn"), cwd=tree.path)
    work_in(tree)
    await trees.commit([tree], "work")
    names = run("ls-tree", "-r", "--name-only", "HEAD", cwd=tree.path)
    assert "new/file.txt" in names
    assert "inside" not in names
    await trees.roll_back([tree], {}, [tree.id], "r1")
    assert (tree.path / "inside" / "file0.txt").exists()


async def test_hooks_of_the_checkout_are_not_run(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    hooks = bare(host, tree) / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "post-commit", "post-checkout", "reference-transaction", "commit-msg"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {host}/hook-was-run\nexit 1\n")
        (hooks / name).chmod(0o755)
    run("config", "core.hooksPath", str(hooks), cwd=tree.path)
    work_in(tree)
    await checkpointed(trees, [tree], "c1", "work")
    await trees.prepare([a_tree(host, source, "tree2")])
    await trees.roll_back([tree], {}, [tree.id], "r1")
    assert not (host / "hook-was-run").exists()


async def test_a_fake_git_directory_of_an_agent_is_not_trusted(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / ".git").unlink()
    run("init", "--quiet", cwd=tree.path)
    run("config", "core.fsmonitor", f"touch {host}/was-run", cwd=tree.path)
    work_in(tree)
    commits = await trees.commit([tree], "work")
    assert run("rev-parse", tree.branch, cwd=bare(host, tree)) == commits[tree.id]
    assert not (host / "was-run").exists()


async def test_a_checkpoint_is_kept_under_a_ref_and_pushed(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    remote = make_bare(tmp_path / "checkpoints")
    shared, local = a_tree(host, source, checkpoint_remote=str(remote)), a_tree(host, source, "tree2")
    await trees.prepare([shared, local])
    work_in(shared)
    commits = await checkpointed(trees, [shared, local], "c1", "work")
    for tree in (shared, local):
        ref = f"refs/kingdom/checkpoints/c1/{tree.id}"
        assert run("rev-parse", ref, cwd=bare(host, tree)) == commits[tree.id]
    pushed = run("for-each-ref", "--format=%(refname)", cwd=remote).splitlines()
    assert pushed == ["refs/kingdom/checkpoints/c1/wf1-tree1", "refs/kingdom/start/wf1-tree1"]
    assert await checkpointed(trees, [shared, local], "c1", "again") == commits


async def test_a_checkpoint_that_cannot_be_pushed_fails(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    tree = a_tree(host, source, checkpoint_remote=str(tmp_path / "gone"))
    await trees.prepare([tree])
    with pytest.raises(ProgramFailed, match="gone could not be reached"):
        await checkpointed(trees, [tree], "c1", "work")


async def test_rolling_back_restores_the_files_and_saves_later_work(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    first, second = a_tree(host, source), a_tree(host, make_source(tmp_path / "lib"), "tree2")
    await trees.prepare([first, second])
    (first.path / "one.txt").write_text("one\n")
    commits = await checkpointed(trees, [first], "c1", "one")
    at_checkpoint = files_of(first.path)
    (first.path / "two.txt").write_text("two\n")
    await trees.commit([first], "two")
    work_in(first)
    (second.path / "three.txt").write_text("three\n")

    refs = await trees.roll_back([first, second], commits, [second.id], "r1")

    assert files_of(first.path) == {**at_checkpoint, "build.log": "ignored\n"}
    assert files_of(second.path) == files_of(tmp_path / "lib")
    assert run("rev-parse", first.branch, cwd=first.path) == commits[first.id]
    assert refs == ("refs/kingdom/rescue/r1/wf1-tree1", "refs/kingdom/rescue/r1/wf1-tree2")
    rescued = run("ls-tree", "-r", "--name-only", refs[0], cwd=bare(host, first)).splitlines()
    assert rescued == [".gitignore", "file0.txt", "file2.txt", "new/file.txt", "one.txt", "two.txt"]
    assert run("show", f"{refs[0]}:file0.txt", cwd=bare(host, first)) == "changed"
    assert run("log", "--format=%s", f"{refs[0]}~1", "-1", cwd=bare(host, first)) == "two"
    assert run("show", f"{refs[1]}:three.txt", cwd=bare(host, second)) == "three"


async def test_a_repeated_rollback_returns_the_same_refs_and_a_later_rescue_gets_a_number(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    refs = await trees.roll_back([tree], {}, [tree.id], "r1")
    rescued = run("rev-parse", refs[0], cwd=bare(host, tree))
    assert await trees.roll_back([tree], {}, [tree.id], "r1") == refs
    (tree.path / "other.txt").write_text("other\n")
    assert await trees.roll_back([tree], {}, [tree.id], "r1") == (*refs, f"{refs[0]}.2")
    assert run("rev-parse", refs[0], cwd=bare(host, tree)) == rescued


async def test_a_roll_back_to_a_missing_commit_changes_nothing(trees: RunCheckouts, host: Path, source: Path) -> None:
    first, second = a_tree(host, source), a_tree(host, source, "tree2")
    await trees.prepare([first, second])
    commits = await trees.commit([first], "nothing")
    work_in(first)
    before, status = files_of(first.path), run("status", "--porcelain", cwd=first.path)
    missing = "deadbeef" * 5
    with pytest.raises(ProgramFailed, match=missing):
        await trees.roll_back([first, second], {**commits, second.id: missing}, [], "r1")
    assert files_of(first.path) == before
    assert run("status", "--porcelain", cwd=first.path) == status
    assert run("for-each-ref", "refs/kingdom/rescue", cwd=bare(host, first)) == ""


async def test_if_one_tree_cannot_be_reset_the_others_get_their_work_back(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    first, second = a_tree(host, source), a_tree(host, make_source(tmp_path / "lib"), "tree2")
    await trees.prepare([first, second])
    work_in(first)
    await trees.commit([first], "work")
    (first.path / "dirty.txt").write_text("dirty\n")
    (first.path / "file2.txt").unlink()
    before, status = files_of(first.path), run("status", "--porcelain", cwd=first.path)
    # The lock files that git leaves are removed, but a directory of this name is not.
    blocked = bare(host, second) / "refs" / "heads" / f"{second.branch}.lock"
    (second.path / "file0.txt").write_text("other\n")
    await trees.commit([second], "other")
    blocked.mkdir()
    with pytest.raises(ProgramFailed, match="cannot be used"):
        await trees.roll_back([first, second], {}, [first.id, second.id], "r1")
    assert files_of(first.path) == before
    assert run("status", "--porcelain", cwd=first.path) == status


async def test_an_agent_that_went_to_another_branch_is_brought_back_to_its_own(host: Path, source: Path) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "own.txt").write_text("own\n")
    await trees.commit([tree], "own")
    run("checkout", "--quiet", "--detach", "HEAD~1", cwd=tree.path)
    (tree.path / "aside.txt").write_text("aside\n")
    refs = await trees.roll_back([tree], {}, [tree.id], "r1")
    assert run("symbolic-ref", "HEAD", cwd=tree.path) == f"refs/heads/{tree.branch}"
    assert files_of(tree.path) == files_of(source)
    assert {run("log", "-1", "--name-only", "--format=", ref, cwd=bare(host, tree)) for ref in refs} == {
        "own.txt",
        "aside.txt",
    }


async def test_another_host_continues_from_the_shared_checkpoint(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    remote = make_bare(tmp_path / "checkpoints")
    tree = a_tree(host, source, checkpoint_remote=str(remote))
    await trees.prepare([tree])
    work_in(tree)
    commits = await checkpointed(trees, [tree], "c1", "work")
    start = await trees.base_commit(tree)
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=source)

    moved = a_tree(tmp_path / "other", source, checkpoint_remote=str(remote))
    there = RunCheckouts(tmp_path / "other" / "repositories")
    await there.prepare([moved])
    assert await there.roll_back([moved], commits, [], "r1") == ()
    (tree.path / "build.log").unlink()
    assert files_of(moved.path) == files_of(tree.path)
    assert await there.base_commit(moved) == start


async def test_releasing_keeps_commits_and_rescues_dirty_files(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    commits = await trees.commit([tree], "work")
    (tree.path / "dirty.txt").write_text("dirty\n")
    refs = await trees.release(tree, "end")
    assert list((host / "trees").iterdir()) == []
    assert run("rev-parse", tree.branch, cwd=bare(host, tree)) == commits[tree.id]
    assert run("show", f"{refs[0]}:dirty.txt", cwd=bare(host, tree)) == "dirty"
    assert await trees.release(tree, "end") == refs


async def test_a_clean_or_missing_tree_is_released_without_a_rescue_ref(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    assert await trees.release(tree, "end") == ()
    await trees.prepare([tree])
    await trees.commit([tree], "nothing")
    assert await trees.release(tree, "end") == ()


async def test_a_released_tree_is_prepared_again_with_its_commits(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    start, commits = await trees.base_commit(tree), await trees.commit([tree], "work")
    await trees.release(tree, "end")
    await trees.prepare([tree])
    assert run("rev-parse", "HEAD", cwd=tree.path) == commits[tree.id]
    assert await trees.base_commit(tree) == start


async def test_a_diff_has_uncommitted_and_untracked_changes(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    work_in(tree)
    diff = await trees.diff(tree, await trees.base_commit(tree))
    assert "+++ b/new/file.txt" in diff
    assert "-line 0\n+changed" in diff
    assert "--- a/file1.txt\n+++ /dev/null" in diff
    assert "build.log" not in diff
    assert run("diff", "--cached", "--name-only", cwd=tree.path) == ""
    await trees.commit([tree], "work")
    assert await trees.diff(tree, await trees.base_commit(tree)) == diff


async def test_trees_of_one_repository_can_be_worked_on_at_once(trees: RunCheckouts, host: Path, source: Path) -> None:
    many = [a_tree(host, source, f"tree{number}") for number in range(8)]
    await trees.prepare(many)
    for tree in many:
        work_in(tree)
    commits = await asyncio.gather(*(checkpointed(trees, [tree], "c1", tree.id) for tree in many))
    assert len({commit for each in commits for commit in each.values()}) == 8
    await asyncio.gather(*(trees.roll_back([tree], {}, [tree.id], "r1") for tree in many))
    assert all((tree.path / "file1.txt").exists() for tree in many)


async def test_a_host_with_an_empty_disk_rolls_back_to_the_shared_checkpoint(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    remote = make_bare(tmp_path / "checkpoints")
    tree = a_tree(host, source, checkpoint_remote=str(remote))
    await trees.prepare([tree])
    (tree.path / "one.txt").write_text("one\n")
    commits = await checkpointed(trees, [tree], "c1", "work")
    start, wanted = await trees.base_commit(tree), files_of(tree.path)
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=source)
    shutil.rmtree(host)
    assert await trees.roll_back([tree], commits, [], "r1") == ()
    assert files_of(tree.path) == wanted
    assert await trees.base_commit(tree) == start
    shutil.rmtree(host)
    await trees.roll_back([tree], {}, [tree.id], "r2")
    assert files_of(tree.path) == files_of(source)


async def test_a_roll_back_that_cannot_create_one_missing_checkout_creates_none(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    lib = make_source(tmp_path / "lib")
    first, second = a_tree(host, source), a_tree(host, lib, "tree2")
    await trees.prepare([first, second])
    commits = await trees.commit([first, second], "nothing")
    shutil.rmtree(host)
    shutil.rmtree(lib)
    with pytest.raises(ProgramFailed, match="lib could not be reached"):
        await trees.roll_back([first, second], commits, [], "r1")
    assert list((host / "trees").iterdir()) == []
