"""The file `.worktreeinclude` of a repository: which files that git ignores a fresh checkout gets from elsewhere.

Each line is a pattern as in `.gitignore`: without a slash it is looked for at any depth, with one from the top; `**`
stands for any number of folders, and what is below a folder that matches is taken too. `!` takes back what an earlier
line took.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.git import run_to_completion
from kingdom.soldiers.files.agent_files import AgentFile, is_path_conflict

Ignored = Callable[[list[str]], Awaitable[list[str]]]

NAME = ".worktreeinclude"
_TEXT_MAX = 64 << 10
_LOOKED_AT_MAX = 200_000
_FILES_MAX = 10_000
_ANY_FOLDERS = "**"


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one line asks for; a `taken` of False takes back."""

    parts: tuple[str, ...]
    taken: bool

    def matches(self, path: PurePosixPath) -> bool:
        """Tell whether it means a path or a folder above it."""
        reached = self._passed({0})
        for part in path.parts:
            reached = self._passed({next_ for at in reached for next_ in self._after(at, part)})
            if len(self.parts) in reached:
                return True
        return False

    def _after(self, at: int, part: str) -> Iterator[int]:
        if self.parts[at] == _ANY_FOLDERS:
            yield at
        elif fnmatchcase(part, self.parts[at]):
            yield at + 1

    def _passed(self, reached: set[int]) -> set[int]:
        """Return also what is reached by letting `**` stand for no folder."""
        for at in sorted(reached):
            end = at
            while end < len(self.parts) and self.parts[end] == _ANY_FOLDERS:
                end += 1
                reached.add(end)
        return reached


def read_patterns(checkout: Path) -> list[Pattern]:
    """Return what a checkout asks for; nothing where it has no such file, or a link in its place.

    Raises ProgramFailed where the file is too long.
    """
    file = AgentFile(checkout, NAME)
    content = file.read(_TEXT_MAX)
    if content is None and (found := file.info()) and found.size > _TEXT_MAX:
        raise ProgramFailed(f"{NAME} has more than {_TEXT_MAX >> 10} kB: name fewer files, or folders as a whole")
    try:
        return [] if content is None else list(parse_patterns(content.decode()))
    except UnicodeDecodeError:
        return []


def parse_patterns(text: str) -> Iterator[Pattern]:
    """Yield the patterns of a text."""
    for line in text.splitlines():
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        taken = not words.startswith("!")
        named = words.removeprefix("!")
        parts = tuple(part for part in named.split("/") if part)
        if parts:
            anywhere = "/" not in named.rstrip("/")
            yield Pattern((_ANY_FOLDERS, *parts) if anywhere else parts, taken)


async def copy_included(source: Path, checkout: Path, *, ignored: Ignored) -> list[str]:
    """Copy what a checkout asks for from a folder, unless it is there already, and return the names.

    Only files that are `ignored` by git are copied, for others would be committed. No link is followed, neither in the
    folder nor in the checkout.
    """
    patterns = read_patterns(checkout)
    wanted = await asyncio.to_thread(_wanted, source, checkout, patterns) if patterns else []
    fitting = await ignored(wanted)
    try:
        return await run_to_completion(asyncio.to_thread(_copy_all, source, checkout, fitting))
    except OSError as error:
        raise ProgramFailed(f"files for {checkout} could not be copied from {source}: {error}") from error


def _wanted(source: Path, checkout: Path, patterns: Sequence[Pattern]) -> list[str]:
    return [name for name in _chosen(source, patterns) if AgentFile(checkout, name).is_free()]


def _copy_all(source: Path, checkout: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if _copy(source, checkout, name)]


def _chosen(source: Path, patterns: Sequence[Pattern]) -> Iterator[str]:
    looked_at = found = 0
    for folder, folders, names in os.walk(source, followlinks=False):
        folders[:] = sorted(name for name in folders if name != ".git")
        looked_at += len(names)
        for name in sorted(names):
            path = PurePosixPath(Path(folder, name).relative_to(source).as_posix())
            last = next((each for each in reversed(patterns) if each.matches(path)), None)
            if last and last.taken:
                found += 1
                yield str(path)
        if looked_at > _LOOKED_AT_MAX or found > _FILES_MAX:
            raise ProgramFailed(f"{source} has too many files to copy from: name fewer in {NAME}, or tidy it up")


def _copy(source: Path, checkout: Path, name: str) -> bool:
    """Copy a regular file; return whether it was one and was not there yet."""
    try:
        # The operator may have linked the folder as a whole.
        with AgentFile(source.resolve(), name).open() as original:
            return AgentFile(checkout, name).add(original, os.fstat(original.fileno()).st_mode)
    except OSError as error:
        if is_path_conflict(error):
            return False
        raise
