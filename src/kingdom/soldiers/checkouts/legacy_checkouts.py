"""Migrate checkouts of an earlier version: worktrees of a clone whose folder name lacks the address."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import structlog

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import Checkout, GitPolicy
from kingdom.soldiers.checkouts.repository import Repository, clone_name, clone_url, read_small_file

_HEAD = "ref: refs/heads/"
_TREES = "trees"
_log = structlog.get_logger("kingdom.soldiers")


async def migrate_legacy_checkouts(repositories: Path, *, home: Path, git_policy: GitPolicy) -> int:
    """Give each legacy checkout below `home` its own git directory, keeping its files; return how many got one."""
    await asyncio.to_thread(_rename_clones, repositories)
    count = 0
    for entry, path in _worktrees(repositories):
        clone = entry.parents[1]
        try:
            branch = _branch(entry, path, home)
            await Checkout(Repository(clone, url=clone_url(clone), home=home), path, branch, git_policy).adopt()
            await asyncio.to_thread(shutil.rmtree, entry)
        except (ProgramFailed, OSError) as error:
            _log.warning("a checkout of an earlier version could not be migrated", checkout=str(path), error=str(error))
        else:
            count += 1
    if count:
        _log.info("migrated checkouts of an earlier version", checkouts=count)
    return count


def _rename_clones(repositories: Path) -> None:
    """Rename clones of earlier versions to include their address."""
    for clone in sorted(repositories.glob("*.git")):
        url = clone_url(clone)
        renamed = repositories / clone_name(unquote(clone.stem), url)
        if url and not clone.name.endswith(clone_name("", url)) and not renamed.exists():
            clone.rename(renamed)


def _worktrees(repositories: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the entry and the folder of each existing worktree."""
    for entry in sorted(repositories.glob("*.git/worktrees/*")):
        path = Path((read_small_file(entry / "gitdir") or "").strip()).parent
        if path.is_dir():
            yield entry, path


def _branch(entry: Path, path: Path, home: Path) -> str:
    """Return the branch of a worktree. Its path is checked, because agents that may commit can write the entry."""
    if path.parent.name != _TREES or not path.is_relative_to(home) or path.resolve() != path:
        raise ProgramFailed(f"it is not a checkout of a run of this host: check {entry}, and remove it")
    head = (read_small_file(entry / "HEAD") or "").strip()
    if not head.startswith(_HEAD):
        raise ProgramFailed("it is on no branch: check out the branch of its run there, and start the host again")
    return head.removeprefix(_HEAD)
