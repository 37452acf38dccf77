"""An agent that may commit leaves traps in its git directory for the host."""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy, git_directory_of
from kingdom.soldiers.checkouts.git import IDENTITY
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from tests.integration.soldiers.sources import a_tree, bare, make_source, run
from tests.redteam.defended import AttemptClass, Ground

COMMITTING = AttemptClass("may commit")
OWN_DIRECTORY = "a git directory per checkout, which the host does not use"
_BRANCH = "refs/heads/kingdom/wf1/tree1"
_OTHER = "refs/heads/kingdom/wf1/tree2"
_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "reference-transaction", "post-index-change")
Leave = Callable[[Path, Path], None]


def _link(name: str) -> Leave:
    def lay(own: Path, victim: Path) -> None:
        place = own / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(victim)

    return lay


def _write(name: str, text: str) -> Leave:
    def lay(own: Path, _: Path) -> None:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)

    return lay


def _hook(name: str) -> Leave:
    def lay(own: Path, victim: Path) -> None:
        (own / "hooks").mkdir(exist_ok=True)
        (own / "hooks" / name).write_text(f"#!/bin/sh\necho run >> {victim}\n")
        (own / "hooks" / name).chmod(0o755)

    return lay


def _configured(*lines: str, attributes: str = "") -> Leave:
    """Return a function that adds configuration; `!` is a program that leaves a mark, `$` a script file."""

    def lay(own: Path, victim: Path) -> None:
        program, script = f'"echo run >> {victim}; cat"', own / "script"
        script.write_text(f"#!/bin/sh\necho run >> {victim}\n")
        script.chmod(0o755)
        with (own / "config").open("a") as file:
            file.write("".join(f"{line.replace('!', program).replace('$', str(script))}\n" for line in lines))
        (own / "info").mkdir(exist_ok=True)
        (own / "info" / "attributes").write_text(attributes)

    return lay


_LINKS = ("COMMIT_EDITMSG", "logs/HEAD", f"logs/{_BRANCH}")


@COMMITTING.stopped_by(OWN_DIRECTORY, {name: _link(name) for name in _LINKS}, quick=True)
async def a_link_to_a_file_of_the_operator(ground: Ground, leave: Leave) -> str:
    return await _changes_elsewhere(ground, leave)


@COMMITTING.stopped_by(
    "the host moves only one branch, and only from its last commit",
    {
        "HEAD points to it": _write("HEAD", f"ref: {_OTHER}\n"),
        "its own branch is a symbolic ref to it": _write(_BRANCH, f"ref: {_OTHER}\n"),
    },
)
async def move_the_branch_of_another_checkout(ground: Ground, leave: Leave) -> str:
    return await _changes_elsewhere(ground, leave)


@COMMITTING.stopped_by("the host moves only one branch, and only from its last commit")
async def move_a_fetched_branch(ground: Ground) -> str:
    return await _changes_elsewhere(ground, _write("HEAD", "ref: refs/remotes/origin/main\n"))


@COMMITTING.stopped_by(OWN_DIRECTORY, {name: _hook(name) for name in _HOOKS})
async def a_hook_in_the_git_directory(ground: Ground, leave: Leave) -> str:
    return await _changes_elsewhere(ground, leave)


@COMMITTING.stopped_by(
    OWN_DIRECTORY,
    {
        "a monitor": _configured("[core]", "\tfsmonitor = !"),
        "a filter": _configured('[filter "evil"]', "\tclean = !", attributes="* filter=evil\n"),
        "a signature": _configured("[commit]", "\tgpgsign = true", "[gpg]", "\tprogram = $"),
    },
)
async def a_program_in_the_configuration(ground: Ground, leave: Leave) -> str:
    return await _changes_elsewhere(ground, leave)


@COMMITTING.stopped_by("git on a checkout runs in a sandbox that has only the checkout")
async def borrow_the_objects_of_a_private_repository(ground: Ground) -> str:
    private = make_source(ground.folder / "private")
    (private / "plans.txt").write_text("the plans\n")
    run("add", "--all", cwd=private)
    run("commit", "--quiet", "-m", "plans", cwd=private)
    trees, tree, host = await _prepared(ground, GitPolicy(may_commit=True, sandboxed=ground.is_defended))
    own = git_directory_of(tree.path)
    with (own / "objects" / "info" / "alternates").open("a") as file:
        file.write(f"{private}/.git/objects\n")
    (own / _BRANCH).parent.mkdir(parents=True, exist_ok=True)
    (own / _BRANCH).write_text(run("rev-parse", "HEAD", cwd=private) + "\n")
    with suppress(ProgramFailed):
        await trees.release(tree, "end")
    plans = run("rev-parse", "HEAD:plans.txt", cwd=private)
    objects = run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=bare(host, tree))
    return f"{plans} is in the clone" if plans in objects else ""


async def _prepared(ground: Ground, use: GitPolicy) -> tuple[RunCheckouts, CheckoutSpec, Path]:
    host, source = ground.folder / "host", make_source(ground.folder / "app", files=3)
    trees = RunCheckouts(host / "repositories", git_policy=use)
    tree = a_tree(host, source)
    await trees.prepare([tree, a_tree(host, source, "tree2")])
    return trees, tree, host


async def _changes_elsewhere(ground: Ground, leave: Leave) -> str:
    """Commit as the host does, or with plain git if there is no defense; return what else changed on the host."""
    trees, tree, host = await _prepared(ground, GitPolicy(may_commit=True))
    victim = ground.folder / "kingdom.yaml"
    victim.write_text("database_url: file:realm\n")
    clone = bare(host, tree)

    def others() -> list[str]:
        refs = run("for-each-ref", "--format=%(objectname) %(refname)", cwd=clone).splitlines()
        return [*(each for each in refs if not each.endswith(tree.branch)), victim.read_text()]

    before = others()
    (tree.path / "new.txt").write_text("new\n")
    if ground.is_defended:
        leave(git_directory_of(tree.path), victim)
        await trees.commit([tree], "work")
    else:
        _commit_in_the_clone(clone, tree, lambda: leave(clone, victim))
    return "; ".join(sorted({*others()} ^ {*before}))


def _commit_in_the_clone(clone: Path, tree: CheckoutSpec, leave: Callable[[], None]) -> None:
    """Commit with plain git, in the git directory that all checkouts share and outside of a sandbox."""
    run("symbolic-ref", "HEAD", f"refs/heads/{tree.branch}", cwd=clone)
    run("config", "core.bare", "false", cwd=clone)
    run("config", "core.logAllRefUpdates", "true", cwd=clone)
    leave()
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_DIR": str(clone), **IDENTITY}
    for words in (["add", "--all"], ["commit", "--quiet", "-m", "work"]):
        subprocess.run(
            ["git", f"--work-tree={tree.path}", *words],
            cwd=tree.path,
            env=environment,
            capture_output=True,
            check=False,
        )
