"""The file `.worktreeinclude` of a repository: ignored files that a fresh checkout gets from the host.

Each line is a pattern as in `.gitignore`: without a slash it matches at any depth, with a slash from the top. `**`
matches any number of folders, and a folder that matches includes everything below it. A line that starts with `!`
excludes files that an earlier line included.

The patterns come from a branch that a stranger may have written, so matching takes linear time per path. The library
pathspec is not used because its regular expressions backtrack: a pattern with four stars can take a minute.
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

IgnoredFilter = Callable[[list[str]], Awaitable[list[str]]]

NAME = ".worktreeinclude"
_TEXT_BYTES_MAX = 64 << 10
_SEARCHED_FILES_MAX = 200_000
_COPIED_FILES_MAX = 10_000
_ANY_FOLDERS = "**"


@dataclass(frozen=True, slots=True)
class IncludePattern:
    """One line of the file; `included` is False for a line with `!`."""

    parts: tuple[str, ...]
    included: bool

    def matches(self, path: PurePosixPath) -> bool:
        """Return whether the pattern matches a path or one of its parent folders."""
        positions = self._skip_any_folders({0})
        for part in path.parts:
            positions = self._skip_any_folders({next_ for at in positions for next_ in self._advance(at, part)})
            if len(self.parts) in positions:
                return True
        return False

    def _advance(self, at: int, part: str) -> Iterator[int]:
        if self.parts[at] == _ANY_FOLDERS:
            yield at
        elif fnmatchcase(part, self.parts[at]):
            yield at + 1

    def _skip_any_folders(self, positions: set[int]) -> set[int]:
        """Add the positions that are reached if `**` matches no folder."""
        for at in sorted(positions):
            end = at
            while end < len(self.parts) and self.parts[end] == _ANY_FOLDERS:
                end += 1
                positions.add(end)
        return positions


def read_patterns(checkout: Path) -> list[IncludePattern]:
    """Return the patterns of a checkout, or an empty list if the file is missing, a symbolic link, or not UTF-8.

    Raises ProgramFailed if the file is too long.
    """
    file = AgentFile(checkout, NAME)
    content = file.read(_TEXT_BYTES_MAX)
    if content is None and (found := file.info()) and found.size > _TEXT_BYTES_MAX:
        raise ProgramFailed(f"{NAME} has more than {_TEXT_BYTES_MAX >> 10} kB: list fewer files, or whole folders")
    try:
        return [] if content is None else list(parse_patterns(content.decode()))
    except UnicodeDecodeError:
        return []


def parse_patterns(text: str) -> Iterator[IncludePattern]:
    """Yield the patterns of a text."""
    for line in text.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        included = not pattern.startswith("!")
        named = pattern.removeprefix("!")
        parts = tuple(part for part in named.split("/") if part)
        if parts:
            anywhere = "/" not in named.rstrip("/")
            yield IncludePattern((_ANY_FOLDERS, *parts) if anywhere else parts, included)


async def copy_included(source: Path, checkout: Path, *, ignored: IgnoredFilter) -> list[str]:
    """Copy the requested files from `source` to a checkout, unless the checkout has them, and return their names.

    Only files that git ignores are copied, because others would be committed. No link is followed, neither in
    `source` nor in the checkout.
    """
    patterns = read_patterns(checkout)
    wanted = await asyncio.to_thread(_find_missing, source, checkout, patterns) if patterns else []
    allowed = await ignored(wanted)
    try:
        return await run_to_completion(asyncio.to_thread(_copy_all, source, checkout, allowed))
    except OSError as error:
        raise ProgramFailed(f"files for {checkout} could not be copied from {source}: {error}") from error


def _find_missing(source: Path, checkout: Path, patterns: Sequence[IncludePattern]) -> list[str]:
    return [name for name in _find_requested(source, patterns) if AgentFile(checkout, name).is_free()]


def _copy_all(source: Path, checkout: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if _copy(source, checkout, name)]


def _find_requested(source: Path, patterns: Sequence[IncludePattern]) -> Iterator[str]:
    searched = found = 0
    for folder, folders, names in os.walk(source, followlinks=False):
        folders[:] = sorted(name for name in folders if name != ".git")
        searched += len(names)
        for name in sorted(names):
            path = PurePosixPath(Path(folder, name).relative_to(source).as_posix())
            last = next((each for each in reversed(patterns) if each.matches(path)), None)
            if last and last.included:
                found += 1
                yield str(path)
        if searched > _SEARCHED_FILES_MAX or found > _COPIED_FILES_MAX:
            raise ProgramFailed(
                f"{source} has more than {_SEARCHED_FILES_MAX} files: remove some, or {NAME} requests more than"
                f" {_COPIED_FILES_MAX} of them: request fewer"
            )


def _copy(source: Path, checkout: Path, name: str) -> bool:
    """Copy a file; return False if it is not a regular file, or if the checkout already has something at its path."""
    try:
        # The folder itself may be a link that the operator made.
        with AgentFile(source.resolve(), name).open() as original:
            return AgentFile(checkout, name).add(original, os.fstat(original.fileno()).st_mode)
    except OSError as error:
        if is_path_conflict(error):
            return False
        raise
