"""What a General has learned: small files in its package that its agents read and add to.

    memory/repository-{owner}.{name}.md  learned in one repository, at most 8 KB
    memory/elsewhere.md                  learned in work without a repository, at most 8 KB
    memory/patterns.md                   promoted by a person to all repositories, at most 5 KB
    memory/decisions.md                  decisions promoted by a person, at most 3 KB

When a file is full, its oldest lines are removed. What agents report may contain text of strangers. So each report
stays on one line with its origin, and only agents in the same repository see it until a person promotes it.
"""

import fcntl
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from kingdom.atomic_write import write_atomically
from kingdom.court.prompt import newest_lines, one_line
from kingdom.errors import Ambiguous, Misconfigured, NotFound
from kingdom.workflow.model.resources.git import unique_name

LOADED_BYTES_MAX = 50 * 1024
_FOLDER = "memory"
_PATTERNS, _DECISIONS, _REPO, _ELSEWHERE = "patterns", "decisions", "repo", "elsewhere"
_BYTES_MAX = {_PATTERNS: 5 * 1024, _REPO: 8 * 1024, _ELSEWHERE: 8 * 1024, _DECISIONS: 3 * 1024}
_EVERYWHERE = (_PATTERNS, _DECISIONS)
_UPDATE_LENGTH_MAX = 500
_ORIGIN = re.compile(r" \[([^\[\]]*)\]$")


class MemoryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent learned. It applies to the repository that the agent worked in."""

    text: str
    about: Literal["patterns", "repo", "decisions"] = "patterns"


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One remembered line. `origin` has its repository, run and day. An `everywhere` line is for all repositories."""

    text: str
    origin: str
    everywhere: bool
    file: str


def load_memory(directory: Path | str, repo: str, files: Sequence[str] = ()) -> str:
    """Return the memory for work in a repository. `files` are additional files of the package."""
    directory = Path(directory)
    found = [("Patterns", _read_section(directory, _PATTERNS, repo))]
    title = f"Repository {one_line(repo)}" if repo else "Work without a repository"
    found.append((title, _read_section(directory, _section_of(repo), repo)))
    found.append(("Decisions", _read_section(directory, _DECISIONS, repo)))
    found += [(name, _read_text(directory, name, LOADED_BYTES_MAX)) for name in files]
    parts: list[str] = []
    room = LOADED_BYTES_MAX
    for title, text in found:
        heading = f"# {title}\n\n"
        shown = newest_lines(f"{text.strip()}\n", room - len(heading.encode()) - 1)
        if shown.strip():
            parts.append(heading + shown)
            room -= len(parts[-1].encode()) + 1
    return "\n".join(parts)


def apply_memory_updates(directory: Path | str, updates: object, repo: str = "", source: str = "") -> tuple[str, ...]:
    """Store what an agent learned, and return why some updates were refused.

    An update is a text, or `{about: patterns | repo | decisions, text}`. It is stored for `repo` together with the
    `source`, even if it is about patterns or decisions. A known line becomes the newest line, so the same updates may
    be applied twice.
    """
    if not isinstance(updates, list | tuple):
        return (f"memory updates must be a list, not {one_line(updates)[:_UPDATE_LENGTH_MAX]}",)
    refused: list[str] = []
    lines: list[str] = []
    for update in updates:
        try:
            learned = msgspec.convert({"text": update} if isinstance(update, str) else update, MemoryUpdate)
        except msgspec.ValidationError as error:
            refused.append(f"this is not a memory update: {error}")
            continue
        text = one_line(learned.text)[:_UPDATE_LENGTH_MAX]
        if not text:
            refused.append("a memory update has no text")
        elif learned.about == _REPO and not repo:
            refused.append(f"this memory update is about a repository, but the work has none: {text}")
        else:
            lines.append(f"- {text} [{_origin(learned.about, repo, source)}]")
    if lines:
        directory = Path(directory)
        with lock_memory(directory):
            _append(directory, _section_of(repo), repo, lines)
    return tuple(refused)


@contextmanager
def lock_memory(package: Path) -> Iterator[None]:
    """Allow one process at a time to change the memory of a package, or to replace the package.

    The lock is that of the folder around the package, because the package itself may be replaced meanwhile.
    """
    folder = package.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def list_legacy_files(directory: Path, files: Collection[str] = ()) -> list[Path]:
    """Return the files that an earlier version wrote for each repository, except the `files` that the package lists."""
    found = sorted((directory / _FOLDER).glob("repo-*.md"))
    return [file for file in found if str(file.relative_to(directory)) not in files]


def migrate_legacy_file(directory: Path, file: Path, repo: str) -> None:
    """Prepend a file of an earlier version to the memory of a repository, and delete the file."""
    with lock_memory(directory):
        # A file that cannot be read must not be deleted below.
        text = _path_inside(directory, str(file.relative_to(directory))).read_text(encoding="utf-8", errors="replace")
        kept = _read_section(directory, _REPO, repo).splitlines()
        known = {_text_of(line) for line in kept}
        lines = [*(line for line in text.splitlines() if _text_of(line) not in known), *kept]
        write_atomically(
            _path_inside(directory, _FOLDER) / _file(directory, _REPO, repo).name,
            newest_lines("".join(f"{line}\n" for line in lines), _BYTES_MAX[_REPO]),
        )
        file.unlink(missing_ok=True)


def list_memory(directory: Path | str) -> list[MemoryLine]:
    """Return every remembered line, lines for all repositories first."""
    directory = Path(directory)
    files = sorted(
        _path_inside(directory, _FOLDER).rglob("*.md"), key=lambda file: (file.stem not in _EVERYWHERE, file)
    )
    return [
        MemoryLine(
            text=_text_of(line),
            origin=found[1] if (found := _ORIGIN.search(line)) else "",
            everywhere=file.stem in _EVERYWHERE,
            file=str(file.relative_to(directory.resolve())),
        )
        for file in files
        for line in _read_text(directory, str(file.relative_to(directory.resolve())), LOADED_BYTES_MAX).splitlines()
        if line.strip()
    ]


def promote_line(directory: Path | str, words: str) -> MemoryLine:
    """Move the one line that contains these words to the memory of all repositories, and return it."""
    directory = Path(directory)
    with lock_memory(directory):
        kept = [each for each in list_memory(directory) if not each.everywhere]
        fitting = [each for each in kept if words.strip().lower() in each.text.lower()]
        if not words.strip() or not fitting:
            raise NotFound(f"no line of a repository contains {words!r}: `kingdom general memory NAME` shows all lines")
        if len({each.text for each in fitting}) > 1:
            shown = "; ".join(each.text for each in fitting)
            raise Ambiguous(f"{words!r} matches several lines, write more of one of them: {shown}")
        chosen = fitting[-1]
        about = _DECISIONS if chosen.origin.startswith(f"{_DECISIONS} of ") else _PATTERNS
        _append(directory, about, "", [f"- {chosen.text}" + (f" [{chosen.origin}]" if chosen.origin else "")])
        for file in {each.file for each in fitting}:
            lines = _read_text(directory, file, LOADED_BYTES_MAX).splitlines()
            left = "".join(f"{line}\n" for line in lines if _text_of(line) != chosen.text)
            write_atomically(_path_inside(directory, file), left)
    return chosen


def _section_of(repo: str) -> str:
    return _REPO if repo else _ELSEWHERE


def _origin(about: str, repo: str, source: str) -> str:
    place = one_line(repo) or "no repository"
    return ", ".join(part for part in (place if about == _REPO else f"{about} of {place}", source) if part)


def _text_of(line: str) -> str:
    return _ORIGIN.sub("", line).removeprefix("- ")


def _append(directory: Path, about: str, repo: str, added: list[str]) -> None:
    by_text = {_text_of(line): line for line in added}
    old = [line for line in _read_section(directory, about, repo).splitlines() if _text_of(line) not in by_text]
    text = "".join(f"{line}\n" for line in [*old, *by_text.values()])
    file = _path_inside(directory, _FOLDER) / _file(directory, about, repo).name
    write_atomically(file, newest_lines(text, _BYTES_MAX[about]))


def _read_section(directory: Path, about: str, repo: str) -> str:
    return _read_text(directory, str(_file(directory, about, repo).relative_to(directory)), _BYTES_MAX[about])


def _file(directory: Path, about: str, repo: str) -> Path:
    return directory / _FOLDER / (f"repository-{unique_name(repo)}.md" if about == _REPO else f"{about}.md")


def _read_text(directory: Path, name: str, bytes_max: int) -> str:
    """Return the newest lines of a file, or an empty text if it cannot be read."""
    try:
        text = _path_inside(directory, name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return newest_lines(text, bytes_max)


def _path_inside(directory: Path, name: str) -> Path:
    """Return the path of a file in the package, or raise Misconfigured if a link leads outside."""
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise Misconfigured(f"{directory / name} points outside the package: keep memory files inside it")
    return path
