"""Checkouts that an earlier version has made: worktrees of a clone that was named by its Git, whatever its address."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import structlog

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkout import Checkout, GitUse
from kingdom.soldiers.repository import Repository, clone_name, read_own, url_of

_HEAD = "ref: refs/heads/"
_log = structlog.get_logger("kingdom.soldiers")


async def take_over_checkouts(repositories: Path, *, home: Path, use: GitUse) -> int:
    """Give each of them a git directory of its own, its files as they are; returns how many there were."""
    await asyncio.to_thread(_rename_clones, repositories)
    count = 0
    for entry, path, branch in _worktrees(repositories):
        clone = entry.parents[1]
        try:
            await Checkout(Repository(clone, url=url_of(clone), home=home), path, branch, use).adopt()
        except (ProgramFailed, OSError) as error:
            _log.warning("a checkout of an earlier version stays as it is", checkout=str(path), error=str(error))
            continue
        await asyncio.to_thread(shutil.rmtree, entry)
        count += 1
    if count:
        _log.info("took over checkouts of an earlier version", checkouts=count)
    return count


def _rename_clones(repositories: Path) -> None:
    """Name the clones of earlier versions by their addresses too."""
    for clone in sorted(repositories.glob("*.git")):
        url = url_of(clone)
        renamed = repositories / clone_name(unquote(clone.stem), url)
        if url and not clone.name.endswith(clone_name("", url)) and not renamed.exists():
            clone.rename(renamed)


def _worktrees(repositories: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield the entry, the folder and the branch of each worktree that is there still."""
    for entry in sorted(repositories.glob("*.git/worktrees/*")):
        path = Path((read_own(entry / "gitdir") or "").strip()).parent
        head = (read_own(entry / "HEAD") or "").strip()
        if path.is_dir() and head.startswith(_HEAD):
            yield entry, path, head.removeprefix(_HEAD)
