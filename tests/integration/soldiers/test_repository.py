"""One repository with many concurrent users; leftovers of a killed git."""

import asyncio
import fcntl
import itertools
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts import repository as repositories
from kingdom.soldiers.checkouts.checkout import git_directory_of
from kingdom.soldiers.checkouts.repository import Repository, clone_name, without_password
from kingdom.soldiers.checkouts.run_checkouts import CheckoutFailed, CheckoutSpec, RunCheckouts
from tests.integration.running import eventually
from tests.integration.soldiers.sources import a_tree, bare, checkpointed, files_of, run
from tests.patience import PATIENCE_SECONDS

Tries = Callable[[int], Awaitable[None]]


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    """Return a function that waits until this many attempts to take a lock were made."""
    tried: list[int] = []
    try_lock = repositories._try_lock

    def note(lock: int) -> bool:
        tried.append(lock)
        return try_lock(lock)

    async def until(count: int) -> None:
        async def so_often() -> bool:
            return len(tried) >= count

        await eventually(so_often)

    monkeypatch.setattr(repositories, "_try_lock", note)
    return until


def marker_of(tree: CheckoutSpec) -> Path:
    """Return the marker of a complete checkout."""
    return git_directory_of(tree.path).parent / "branch"


def test_two_addresses_never_share_a_clone_and_a_new_password_keeps_the_clone() -> None:
    names = {
        clone_name(git_id, url)
        for git_id in ("app", "app-web", "web/app")
        for url in ("https://github.com/acme/web-app.git", "https://github.com/acme-web/app.git", "/srv/web-app")
    }
    assert len(names) == 9
    assert not any("/" in name for name in names)
    assert clone_name("app", "https://x:old@github.com/acme/app") == clone_name("app", "https://github.com/acme/app")


async def start_preparing(host: Path, source: Path, first: int, last: int, **environment: str) -> Process:
    """Start a process that prepares trees of these numbers at once."""
    module = ["-m", "tests.integration.soldiers.preparing"]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *module,
        host,
        source,
        str(first),
        str(last),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )


async def test_fifty_trees_are_prepared_at_once_by_two_processes(host: Path, source: Path) -> None:
    processes = [await start_preparing(host, source, first, first + 25) for first in (0, 25)]
    errors = [(await process.communicate())[1].decode() for process in processes]
    assert errors == ["", ""]
    assert [process.returncode for process in processes] == [0, 0]
    wanted = files_of(source)
    assert [files_of(host / "trees" / f"tree{number}") for number in range(50)] == [wanted] * 50


async def test_lock_files_of_a_killed_git_are_removed(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    repository = bare(host, tree)
    locks = [
        *(git_directory_of(tree.path) / f"{name}.lock" for name in ("index", "HEAD", "ORIG_HEAD")),
        repository / "refs" / "heads" / f"{tree.branch}.lock",
        repository / "config.lock",
        repository / "refs" / "remotes" / "origin" / "main.lock",
    ]
    for lock in locks:
        lock.touch()
    (tree.path / "new.txt").write_text("new\n")
    kept = [tree.checkpoint_ref("c1"), tree.rescue_ref("r1")]
    for ref in kept:
        (repository / ref).parent.mkdir(parents=True)
        (repository / f"{ref}.lock").touch()
    await checkpointed(trees, [tree], "c1", "work")
    assert await trees.roll_back([tree], {}, [tree.id], "r1") == (kept[1],)
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=source)
    await trees.prepare([a_tree(host, source, "tree2")])
    assert [*repository.rglob("*.lock"), *git_directory_of(tree.path).rglob("*.lock")] == []


async def test_a_checkout_that_was_only_begun_is_recreated(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([a_tree(host, source, "tree0")])
    # The state after a prepare that was killed at this point.
    git_directory_of(tree.path).mkdir(parents=True)
    (git_directory_of(tree.path) / "HEAD").write_text("0" * 40)
    tree.path.mkdir()
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)


async def test_a_checkout_without_all_its_files_is_completed(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    run("update-ref", "-d", tree.start_ref, cwd=bare(host, tree))
    (tree.path / "file1.txt").unlink()
    marker_of(tree).unlink()
    (git_directory_of(tree.path) / "index.lock").touch()
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)
    assert await trees.base_commit(tree) == run("rev-parse", "main", cwd=source)


async def test_a_checkout_whose_files_are_gone_is_recreated_with_its_commits(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "new.txt").write_text("new\n")
    await trees.commit([tree], "work")
    shutil.rmtree(tree.path)
    await trees.prepare([tree])
    assert (tree.path / "new.txt").read_text() == "new\n"


async def test_an_incomplete_checkout_cannot_be_committed_and_is_prepared_again(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    await trees.release(tree, "r1")
    git_directory_of(tree.path).mkdir(parents=True)
    tree.path.mkdir()
    with pytest.raises(ProgramFailed, match="no complete checkout"):
        await trees.commit([tree], "nothing")
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)


async def test_a_host_that_was_killed_at_any_time_prepares_again(trees: RunCheckouts, host: Path, source: Path) -> None:
    for number in itertools.count():
        folder = host.parent / "bin" / str(number)
        path = _with_killing_git(folder, calls=1 + 2 * number)
        process = await start_preparing(host, source, number, number + 3, PATH=path)
        await process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL

        async def git_has_ended(ended: Path = folder / "ended") -> bool:
            return ended.exists()

        # Two processes that create the same repository would conflict.
        await eventually(git_has_ended)
        wanted = [a_tree(host, source, f"tree{each}") for each in range(number, number + 3)]
        await trees.prepare(wanted)
        assert [files_of(tree.path) for tree in wanted] == [files_of(source)] * 3
        assert [run("status", "--porcelain", cwd=tree.path) for tree in wanted] == [""] * 3


async def test_a_branch_of_an_interrupted_prepare_is_used(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([a_tree(host, source, "tree0")])
    start = run("rev-parse", "main", cwd=source)
    run("branch", "--no-track", tree.branch, "origin/main", cwd=bare(host, tree))
    run("commit", "--quiet", "--allow-empty", "-m", "second", cwd=source)
    await trees.prepare([tree])
    assert await trees.base_commit(tree) == start == run("rev-parse", "HEAD", cwd=tree.path)


async def test_preparing_a_checkout_over_unknown_files_fails_and_keeps_them(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    tree = a_tree(host, source)
    tree.path.mkdir(parents=True)
    (tree.path / "precious.txt").write_text("precious\n")
    with pytest.raises(CheckoutFailed, match="move them away"):
        await trees.prepare([tree])
    assert files_of(tree.path) == {"precious.txt": "precious\n"}


async def test_a_path_of_another_checkout_is_refused(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "new.txt").write_text("new\n")
    with pytest.raises(CheckoutFailed, match="use another path"):
        await trees.prepare([a_tree(host, source, "tree2", path=tree.path)])
    assert (tree.path / "new.txt").exists()


async def test_a_deleted_branch_can_be_replaced_by_branches_below_its_name(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    run("branch", "topic", cwd=source)
    await trees.prepare([a_tree(host, source, base_branch="topic")])
    run("branch", "-D", "topic", cwd=source)
    run("branch", "topic/one", cwd=source)
    await trees.prepare([a_tree(host, source, "tree2", base_branch="topic/one")])


async def test_a_changed_address_is_used_from_then_on(
    trees: RunCheckouts, host: Path, source: Path, tmp_path: Path
) -> None:
    await trees.prepare([a_tree(host, source)])
    source.rename(tmp_path / "moved")
    await trees.prepare([a_tree(host, source, "tree2", url=str(tmp_path / "moved"))])
    assert run("config", "remote.origin.url", cwd=host / "trees" / "tree2") == str(tmp_path / "moved")


async def test_checkouts_whose_folders_have_the_same_name_are_distinguished(
    trees: RunCheckouts, host: Path, source: Path
) -> None:
    first, second = a_tree(host, source), a_tree(host, source, "tree2", path=host / "other" / "tree1")
    await trees.prepare([first, second])
    for tree in (first, second):
        (tree.path / f"{tree.id}.txt").touch()
        await trees.commit([tree], tree.id)
    assert [run("log", "-1", "--format=%s", tree.branch, cwd=tree.path) for tree in (first, second)] == [
        first.id,
        second.id,
    ]
    await trees.release(first, "end")
    assert (await trees.commit([second], "nothing"))[second.id] == run("rev-parse", second.branch, cwd=second.path)


async def test_waiting_for_the_lock_does_not_block_other_tasks(host: Path, source: Path, tries: Tries) -> None:
    repository = Repository(host / "app.git", url=str(source), home=host)
    host.mkdir()
    with (host / "app.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = asyncio.create_task(_take(repository))
        await tries(3)
        assert not waiting.done()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_a_task_cancelled_while_it_waits_for_the_lock_does_not_get_it(
    host: Path, source: Path, tries: Tries
) -> None:
    repository = Repository(host / "app.git", url=str(source), home=host)
    async with repository.locked():
        waiting = asyncio.create_task(_take(repository))
        await tries(3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wait_for(_take(repository), PATIENCE_SECONDS)


def test_passwords_are_not_shown() -> None:
    assert without_password("https://ada:secret@example.org/app.git") == "https://example.org/app.git"
    assert without_password("git@example.org:app.git") == "git@example.org:app.git"


def _with_killing_git(folder: Path, *, calls: int) -> str:
    """Return a PATH whose git kills its caller at the given call, continues itself, and reports its end."""
    counted = folder / "calls"
    counted.mkdir(parents=True)
    (folder / "git").write_text(
        f"#!/bin/sh\nn=1; until mkdir {counted}/$n 2>/dev/null; do n=$((n + 1)); done\n"
        f'[ $n -ne {calls} ] && exec {shutil.which("git")} "$@"\n'
        f'kill -KILL $PPID\n{shutil.which("git")} "$@"\ntouch {folder}/ended\n'
    )
    (folder / "git").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


async def _take(repository: Repository) -> None:
    async with repository.locked():
        pass
