"""One checkout: a worktree with a branch of its own, and what an agent may leave in it."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from kingdom.errors import ProgramFailed
from kingdom.soldiers.git import LOCAL_TRIES, finish, retried
from kingdom.soldiers.nested import gathered, repositories_in, stage
from kingdom.soldiers.removal import remove_tree
from kingdom.soldiers.repository import Repository, read_own
from kingdom.whole_file import write_whole

T = TypeVar("T")

_UNFINISHED = ("rebase-merge", "rebase-apply")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a checkout holds: where it is, its branch, and a commit of its files; `head` is None before a first."""

    on: str
    head: str | None
    tip: str | None
    files: str


class Checkout:
    """The files of one run; git is told where its data lies, since an agent may have changed what `.git` says."""

    def __init__(self, repository: Repository, path: Path, branch: str) -> None:
        self._repository = repository
        self._path = path
        self._branch = f"refs/heads/{branch}"

    @property
    def is_there(self) -> bool:
        """Tell whether the checkout was made to its end: git writes the index after the last file."""
        entry = self._entry()
        return entry is not None and self._path.is_dir() and (entry / "index").exists()

    @property
    def is_on_branch(self) -> bool:
        """Tell whether git knows of a checkout here, on the branch that it shall be made for."""
        return self._entry() is not None and self._on() == self._branch

    async def make(self, start: str) -> None:
        """Check out the branch, or a new one from `start`, also after a call that was killed; the lock must be held."""
        await retried(lambda: self._register(start), tries=LOCAL_TRIES)
        if not self.is_on_branch:
            raise ProgramFailed(
                f"{self._path} is a checkout of {self._on() or 'no branch'}, not of {self._branch}: use another path,"
                " or look at what lies there and release it"
            )
        # Only now, so that a call that was killed before has left no files that might be somebody's work.
        if not self.is_there:
            await self._twice(lambda: self._git("reset", "--quiet", "--hard"))

    def repair(self) -> None:
        """Remove what a killed git left behind; nobody else may use this checkout now."""
        entry = self._known_entry()
        for lock in [*entry.glob("*.lock"), self._repository.path / f"{self._branch}.lock"]:
            lock.unlink(missing_ok=True)
        link, words = self._path / ".git", f"gitdir: {entry}\n"
        # A folder in its place may hold commits; whatever else it is leads astray.
        if (link.is_symlink() or not link.is_dir()) and read_own(link) != words:
            write_whole(link, words)

    async def commit(self, message: str) -> str:
        """Commit everything but ignored files, where anything has changed, and return the commit that is there then."""

        async def once() -> None:
            staged = await self._stage()
            if staged != await self._tree(await self._head()):
                await self._git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)

        await self._twice(once)
        head = await self._head()
        if head is None:
            raise ProgramFailed(f"{self._path} has no commit and no files: nothing can be recorded; roll it back")
        return head

    async def state(self) -> State:
        """Return all that the checkout holds, and change nothing but the store of objects."""
        head, tip = await self._head(), await self._repository.commit(self._branch)
        files = await self._files()
        if head is not None and files == await self._tree(head):
            return State(on=self._on(), head=head, tip=tip, files=head)
        parents = [] if head is None else ["-p", head]
        files = (await self._git("commit-tree", files, *parents, "-m", "What lay in the checkout")).strip()
        return State(on=self._on(), head=head, tip=tip, files=files)

    async def go_to(self, commit: str) -> None:
        """Bring branch, index and files to a commit; only ignored files stay."""

        async def once() -> None:
            await self._git("symbolic-ref", "HEAD", self._branch)
            await self._git("reset", "--quiet", "--hard", commit)
            await self._git("clean", "--quiet", "-fd")

        await self._twice(once)
        entry = self._known_entry()
        for name in _UNFINISHED:
            shutil.rmtree(entry / name, ignore_errors=True)

    async def put_back(self, state: State) -> None:
        """Bring the checkout back to what it held; what was staged is a mere change afterwards."""
        head = state.head or state.files
        if state.on:
            await self._git("symbolic-ref", "HEAD", state.on)
        else:
            await self._git("update-ref", "--no-deref", "HEAD", head)
        await self._git("reset", "--quiet", "--hard", head)
        await self._git("read-tree", "--reset", "-u", state.files)
        await self._git("reset", "--quiet", "--mixed", head)
        if state.tip is not None:
            await self._repository.point(self._branch, state.tip)

    async def diff(self, since: str) -> str:
        """Return what the files differ in from a commit, with all that is not committed yet."""
        return await self._git("diff", "--no-color", "--no-ext-diff", "--no-textconv", since, await self._files())

    async def nested(self) -> list[str]:
        """Return commits with all that the repositories inside of the checkout hold; raises ProgramFailed if it cannot.

        A `.git` that an agent put in the place of ours makes the checkout itself such a repository.
        """
        own = self._path / ".git"
        if own.is_dir() and not own.is_symlink():
            return await gathered(self._repository, self._path, self._path)
        untracked, linked = await repositories_in(self._git, self._path)
        return [
            commit
            for name in (*untracked, *linked)
            for commit in await gathered(self._repository, self._path / name, self._path)
        ]

    async def remove(self) -> None:
        """Remove files and registration; the branch stays. One that is not there is fine."""
        aside = self._path.with_name(f".{self._path.name}.removed")
        await finish(asyncio.to_thread(_delete, aside))
        async with self._repository.held():
            entry = self._entry()
            if entry is None:
                self._make_room()
            elif self._path.exists():
                # At once or not at all, so that half of it is never taken for the work of an agent.
                self._path.rename(aside)
            if entry is not None:
                (entry / "locked").unlink(missing_ok=True)
            await self._repository.git("worktree", "prune")
        await finish(asyncio.to_thread(_delete, aside))

    async def _register(self, start: str) -> None:
        """Let git know of the checkout, without any files yet."""
        self._repository.remove_half_made()
        await self._repository.git("worktree", "prune")
        if self._entry() is not None:
            return
        self._make_room()
        exists = await self._repository.commit(self._branch) is not None
        name = self._branch.removeprefix("refs/heads/")
        what = [str(self._path), name] if exists else ["--no-track", "-b", name, str(self._path), start]
        await self._repository.git("worktree", "add", "--quiet", "--no-checkout", *what)

    async def _files(self) -> str:
        """Return the files that are not ignored as a tree; neither branch nor index is touched."""
        with TemporaryDirectory() as directory:
            index = Path(directory, "index")
            with suppress(FileNotFoundError):
                shutil.copyfile(self._known_entry() / "index", index)
            return await self._stage(index)

    async def _stage(self, index: Path | None = None) -> str:
        """Put all files that are not ignored into an index, and return it as a tree."""
        if not self.is_there:
            raise ProgramFailed(f"the checkout at {self._path} was never completed: prepare it first")
        return await stage(partial(self._git, index=index), self._path)

    async def _head(self) -> str | None:
        return await self._repository.commit(f"worktrees/{self._known_entry().name}/HEAD")

    def _on(self) -> str:
        """Return the ref that is checked out, or nothing where HEAD is a mere commit."""
        words = (read_own(self._known_entry() / "HEAD") or "").strip()
        return words.removeprefix("ref: ") if words.startswith("ref: ") else ""

    async def _tree(self, commit: str | None) -> str | None:
        return None if commit is None else (await self._git("rev-parse", f"{commit}^{{tree}}")).strip()

    async def _git(self, *arguments: str, index: Path | None = None) -> str:
        return await self._repository.git(*arguments, entry=self._known_entry(), files=self._path, index=index)

    async def _twice(self, act: Callable[[], Awaitable[T]]) -> T:
        async def once() -> T:
            self.repair()
            return await act()

        return await retried(once, tries=LOCAL_TRIES)

    def _known_entry(self) -> Path:
        entry = self._entry()
        if entry is None or not self._path.is_dir():
            raise ProgramFailed(f"there is no checkout at {self._path}: prepare it first")
        return entry

    def _entry(self) -> Path | None:
        """Return where git keeps the data of this checkout, or None where it knows of none."""
        own = str(self._path.resolve() / ".git")
        worktrees = self._repository.path / "worktrees"
        # Git names it after the folder, and gives it a number only where that name is taken.
        for record in chain([worktrees / self._path.name / "gitdir"], worktrees.glob("*/gitdir")):
            if (read_own(record) or "").strip() == own:
                return record.parent
        return None

    def _make_room(self) -> None:
        """Remove the empty beginning of a checkout; files that nobody knows of are left to people."""
        if not self._path.exists():
            return
        if any(child.name != ".git" or child.is_dir() for child in self._path.iterdir()):
            raise ProgramFailed(
                f"{self._path} has files, but is no checkout of {self._repository.path}: look whether they are still"
                " wanted, and move them away"
            )
        (self._path / ".git").unlink(missing_ok=True)
        self._path.rmdir()


def _delete(directory: Path) -> None:
    try:
        remove_tree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProgramFailed(f"{directory} could not be removed: {error}; remove it by hand") from error
