"""Agents that change files while Kingdom works on their checkouts, and traps in their git directories."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy, git_directory_of
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, run

KEY = "the private key of the operator"
FILES = 100
# Exchanges a folder for a link, and back, as fast as it can.
SWAPPER = """
import ctypes, sys
folder, link = (name.encode() for name in sys.argv[1:])
exchange = ctypes.CDLL(None).renameat2
print(flush=True)
while True:
    exchange(-100, folder, -100, link, 2)
"""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a folder of the operator with files of the same names as the agent's."""
    folder = tmp_path / "home-of-operator"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"key{number}").write_text(f"{KEY} {number}\n")
    return folder


@contextmanager
def swapping(tree: CheckoutSpec, victim: Path) -> Iterator[None]:
    """Let a process replace a folder of the checkout by a link to the operator's, again and again."""
    (tree.path / "keys").mkdir()
    for number in range(FILES):
        (tree.path / "keys" / f"key{number}").write_text(f"mine {number}\n")
    (tree.path / "link.log").symlink_to(victim)
    argv = [sys.executable, "-I", "-S", "-c", SWAPPER, str(tree.path / "keys"), str(tree.path / "link.log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout
        swapper.stdout.readline()
        try:
            yield
        finally:
            swapper.send_signal(signal.SIGKILL)


def leaked(host: Path, tree: CheckoutSpec) -> bool:
    """Return whether the clone or the checkout's git directory, which the agent reads, has the operator's files."""
    for place in (bare(host, tree), git_directory_of(tree.path)):
        listed = run("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)", cwd=place)
        blobs = [line.split()[0] for line in listed.splitlines() if line.endswith(" blob")]
        result = subprocess.run(
            ["git", "cat-file", "--batch"], input="\n".join(blobs).encode(), cwd=place, capture_output=True, check=True
        )
        if KEY.encode() in result.stdout:
            return True
    return False


def change_files(tree: CheckoutSpec, number: int) -> None:
    """Change every file of the agent's folder, so that git reads all of them again."""
    for name in ("keys", "link.log"):
        # At any moment one of the two paths is a folder, and the other is a link to the operator's files.
        with suppress(OSError):
            folder = os.open(tree.path / name, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                for each in range(FILES):
                    file = os.open(f"key{each}", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
                    os.write(file, f"mine {each} {number}\n".encode())
                    os.close(file)
            finally:
                os.close(folder)


async def leaks_within(trees: RunCheckouts, host: Path, tree: CheckoutSpec, tries: int) -> bool:
    base = await trees.base_commit(tree)
    for number in range(tries):
        with suppress(ProgramFailed):
            await (trees.commit([tree], "work") if number % 2 else trees.diff(tree, base))
        change_files(tree, number)
        if leaked(host, tree):
            return True
    return False


async def test_a_folder_that_becomes_a_link_during_a_commit_is_not_followed(
    trees: RunCheckouts, host: Path, source: Path, victim: Path
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    with swapping(tree, victim):
        assert not await leaks_within(trees, host, tree, 10)


@pytest.mark.variants
async def test_without_the_sandbox_a_swapped_folder_leaks_files_that_the_host_can_read(
    host: Path, source: Path, victim: Path
) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(sandboxed=False))
    tree = a_tree(host, source)
    await trees.prepare([tree])
    with swapping(tree, victim):
        assert await leaks_within(trees, host, tree, 1000)


def link_to(name: str) -> Callable[[Path, Path], None]:
    """Return a function that replaces a file of git with a link to a file of the operator."""

    def lay(own: Path, victim: Path) -> None:
        place = own / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(victim)

    return lay


def head_on_the_branch_of_another_tree(own: Path, _: Path) -> None:
    (own / "HEAD").write_text("ref: refs/heads/kingdom/wf1/tree2\n")


def head_on_the_base(own: Path, _: Path) -> None:
    (own / "HEAD").write_text("ref: refs/remotes/origin/main\n")


def branch_that_refers_to_the_branch_of_another_tree(own: Path, _: Path) -> None:
    (own / "refs/heads/kingdom/wf1/tree1").write_text("ref: refs/heads/kingdom/wf1/tree2\n")


def hooks_and_configuration(own: Path, victim: Path) -> None:
    hooks = own / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "post-index-change", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\necho run >> {victim}\n")
        (hooks / name).chmod(0o755)
    evil = f"echo run >> {victim}; cat"
    (own / "config").write_text(
        f'[core]\n\tfsmonitor = "{evil}"\n\thooksPath = {hooks}\n[filter "evil"]\n\tclean = "{evil}"\n'
    )
    (own / "info").mkdir()
    (own / "info" / "attributes").write_text("* filter=evil\n")


LEFT = [
    *(link_to(name) for name in ("COMMIT_EDITMSG", "logs/HEAD", "HEAD", "index", "index.new", "packed-refs")),
    *(link_to(name) for name in ("refs/heads/kingdom/wf1/tree1", "logs/refs/heads/kingdom/wf1/tree1")),
    *(
        head_on_the_branch_of_another_tree,
        head_on_the_base,
        branch_that_refers_to_the_branch_of_another_tree,
        hooks_and_configuration,
    ),
]


@pytest.mark.parametrize("sandboxed", [True, pytest.param(False, marks=pytest.mark.variants)])
@pytest.mark.parametrize("leave", LEFT)
async def test_nothing_in_the_git_directory_of_an_agent_redirects_kingdom(
    host: Path, source: Path, tmp_path: Path, leave: Callable[[Path, Path], None], *, sandboxed: bool
) -> None:
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(may_commit=True, sandboxed=sandboxed))
    tree, other = a_tree(host, source), a_tree(host, source, "tree2")
    await trees.prepare([tree, other])
    victim = tmp_path / "kingdom.yaml"
    victim.write_text("database_url: file:realm\n")
    before = refs(host, tree)
    leave(git_directory_of(tree.path), victim)
    (tree.path / "new.txt").write_text("new\n")
    commit = (await trees.commit([tree], "work"))[tree.id]
    assert victim.read_text() == "database_url: file:realm\n"
    assert refs(host, tree) == before
    assert run("show", f"{commit}:new.txt", cwd=bare(host, tree)) == "new"
    assert run("rev-parse", tree.branch, cwd=bare(host, tree)) == commit


def refs(host: Path, tree: CheckoutSpec) -> list[str]:
    """Return all refs of the clone but the branch of a tree."""
    return [line for line in run("for-each-ref", cwd=bare(host, tree)).splitlines() if not line.endswith(tree.branch)]


def gitattributes_is_a_pipe(path: Path) -> None:
    os.mkfifo(path / ".gitattributes")


def gitignore_is_a_pipe(path: Path) -> None:
    (path / "folder").mkdir()
    os.mkfifo(path / "folder" / ".gitignore")


def a_repository_whose_head_is_a_pipe(path: Path) -> None:
    (path / "nested" / ".git").mkdir(parents=True)
    os.mkfifo(path / "nested" / ".git" / "HEAD")


def a_folder_that_cannot_be_read(path: Path) -> None:
    (path / "shut").mkdir()
    (path / "shut" / "file").touch()
    (path / "shut").chmod(0)


def a_path_that_is_too_long(path: Path) -> None:
    place = os.open(path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=place)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def a_file_that_is_too_large(path: Path) -> None:
    with (path / "large").open("wb") as file:
        file.truncate((1 << 30) + 1)


TRAPS = {
    gitattributes_is_a_pipe: r"\.gitattributes is not a regular file",
    gitignore_is_a_pipe: r"folder/\.gitignore is not a regular file",
    a_repository_whose_head_is_a_pipe: "nested/ has a .git that git would wait for",
    a_folder_that_cannot_be_read: "shut/ cannot be read",
    a_path_that_is_too_long: "d/d+.*cannot be read",
    a_file_that_is_too_large: "large exceeds the limits of a commit, 1 GiB",
}


@pytest.mark.parametrize(("lay", "reported"), TRAPS.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_a_file_that_git_would_wait_for_or_skip_fails_the_commit_and_is_named(
    trees: RunCheckouts, host: Path, source: Path, lay: Callable[[Path], None], reported: str
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    lay(tree.path)
    with pytest.raises(ProgramFailed, match=reported):
        await trees.commit([tree], "work")
    with pytest.raises(ProgramFailed, match=reported):
        await trees.diff(tree, await trees.base_commit(tree))


@pytest.mark.parametrize("lay", [lay for lay in TRAPS if lay is not gitattributes_is_a_pipe])
async def test_a_file_that_git_would_wait_for_or_skip_may_be_in_an_ignored_folder(
    trees: RunCheckouts, host: Path, source: Path, lay: Callable[[Path], None]
) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    (tree.path / "build.log").mkdir()
    lay(tree.path / "build.log")
    (tree.path / "new.txt").write_text("new\n")
    commit = (await trees.commit([tree], "work"))[tree.id]
    assert run("show", f"{commit}:new.txt", cwd=bare(host, tree)) == "new"


async def test_a_changed_file_with_unchanged_times_is_committed(trees: RunCheckouts, host: Path, source: Path) -> None:
    tree = a_tree(host, source)
    await trees.prepare([tree])
    file = tree.path / "file0.txt"
    before = file.stat()
    index = git_directory_of(tree.path) / "index"
    file.write_text("like 0\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    # The times stay the same, so only the content shows the change.
    run("update-index", "--assume-unchanged", "file0.txt", cwd=tree.path)
    assert index.exists()
    assert await trees.changed_files([tree]) == ["app/file0.txt"]
    commit = (await trees.commit([tree], "work"))[tree.id]
    assert run("show", f"{commit}:file0.txt", cwd=bare(host, tree)) == "like 0"
    assert await trees.changed_files([tree]) == []
