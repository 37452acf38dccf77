"""Repositories inside of a checkout: no commit of the checkout can hold them, so they get commits of their own."""

import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kingdom.errors import ProgramFailed
from kingdom.soldiers.git import GitFailed
from kingdom.soldiers.repository import Repository
from kingdom.soldiers.sandbox.bubblewrap import only_reading

Git = Callable[..., Awaitable[str]]

_LINK = "160000 "
_DEPTH_MAX = 100
_OWN_WORK = ("refs/heads/", "refs/stash")


async def repositories_in(git: Git, path: Path) -> tuple[list[str], list[str]]:
    """Return the names of all repositories below a folder: those that its index has not, and those that it links to."""
    others = (await git("ls-files", "-z", "--others", "--exclude-standard")).split("\0")
    staged = (await git("ls-files", "-z", "--stage")).split("\0")
    links = [line.partition("\t")[2] for line in staged if line.startswith(_LINK)]
    linked = [name for name in links if _lies_in(path, name) and (path / name / ".git").exists()]
    return [name for name in others if name.endswith("/")], linked


async def stage(git: Git, path: Path) -> str:
    """Put all files that are not ignored into an index, and return it as a tree; repositories stay where they are."""
    untracked, linked = await repositories_in(git, path)
    await git("add", "--all", "--", ".", *(f":(exclude,literal){name}" for name in (*untracked, *linked)))
    if linked:
        # Not by add, which looks for changed files there and runs what the configuration of that repository names.
        await git("update-index", "--", *linked)
    return (await git("write-tree")).strip()


async def gathered(repository: Repository, path: Path, checkout: Path) -> list[str]:
    """Return commits in `repository` that hold another repository: its files upon its branches, and those inside of it.

    No program that its configuration names is run, and of what lies outside of the `checkout` nothing is read, wherever
    the other repository leads. Raises ProgramFailed where not all that its commits need is there.
    """
    if len(path.relative_to(checkout).parts) > _DEPTH_MAX:
        raise ProgramFailed(f"repositories lie in one another too deep at {path}: look whether they are wanted")
    try:
        tips = await _fetched(repository, path, checkout)
        with TemporaryDirectory() as directory:
            git = partial(repository.git, files=path, index=Path(directory, "index"))
            names, _ = await repositories_in(git, path)
            tree = await stage(git, path)
    except GitFailed as error:
        raise ProgramFailed(
            f"{path} is a repository of its own that cannot be kept: push or copy what is wanted from it, remove it,"
            f" and try again; {error}"
        ) from error
    parents = [part for tip in tips for part in ("-p", tip)]
    commit = (await repository.git("commit-tree", tree, *parents, "-m", f"What lay in {path}")).strip()
    return [commit, *[each for name in names for each in await gathered(repository, path / name, checkout)]]


def _lies_in(path: Path, name: str) -> bool:
    """Tell whether a folder lies where its name says, and is not reached through a link."""
    return (path / name).resolve() == path.resolve() / name


async def _fetched(repository: Repository, path: Path, checkout: Path) -> list[str]:
    """Get all that the branches of another repository hold, and return the commits that they are at."""
    # An agent chose where this repository takes its objects from: the one that reads them sees nothing else.
    reader = f"--upload-pack={shlex.join([*only_reading(checkout), 'git', 'upload-pack'])}"
    told = [line.split("\t") for line in (await repository.git("ls-remote", reader, "--", str(path))).splitlines()]
    wanted = {name: commit for commit, name in told if name == "HEAD" or name.startswith(_OWN_WORK)}
    if not wanted:
        return []
    tips = list(dict.fromkeys(wanted.values()))
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", reader)
    await repository.git("fetch", *options, "--", str(path), *wanted)
    # A shallow repository gives commits without those that they stand upon, and git does not complain.
    await repository.git("rev-list", "--objects", "--quiet", *tips, "--not", "--all")
    return tips
