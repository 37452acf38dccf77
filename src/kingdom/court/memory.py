"""What a General has learned: small files in its package, shown to its agents and written with what they report.

    memory/repository-{owner}.{name}.md  what agents learned in one repository, at most 8 KB
    memory/elsewhere.md                  what they learned in work without a repository, at most 8 KB
    memory/patterns.md                   what a person let be true everywhere, at most 5 KB
    memory/decisions.md                  what was decided so, at most 3 KB

The oldest lines go when a file is full. What agents report was drawn from foreign text, so it stays on one line each,
with where it came from, and is shown to agents of the same repository only until a person promotes it.
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
from kingdom.workflow.model.git import unique_name

LOADED_BYTES_MAX = 50 * 1024
_FOLDER = "memory"
_PATTERNS, _DECISIONS, _REPO, _ELSEWHERE = "patterns", "decisions", "repo", "elsewhere"
_BYTES_MAX = {_PATTERNS: 5 * 1024, _REPO: 8 * 1024, _ELSEWHERE: 8 * 1024, _DECISIONS: 3 * 1024}
_EVERYWHERE = (_PATTERNS, _DECISIONS)
_UPDATE_LENGTH_MAX = 500
_ORIGIN = re.compile(r" \[([^\[\]]*)\]$")


class MemoryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent learned; `repo` is the repository that it worked in, it cannot name another."""

    text: str
    about: Literal["patterns", "repo", "decisions"] = "patterns"


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a package remembers; `origin` tells the repository, the run and the day where it was learned."""

    text: str
    origin: str
    everywhere: bool
    file: str


def load_memory(directory: Path | str, repo: str, files: Sequence[str] = ()) -> str:
    """Return what a package remembers for work in a repository; `files` are more of its files to show."""
    directory = Path(directory)
    found = [("Patterns", _kept(directory, _PATTERNS, repo))]
    title = f"Repository {one_line(repo)}" if repo else "Work without a repository"
    found.append((title, _kept(directory, _sort(repo), repo)))
    found.append(("Decisions", _kept(directory, _DECISIONS, repo)))
    found += [(name, _text(directory, name, LOADED_BYTES_MAX)) for name in files]
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
    """Write down what an agent reports to have learned, and return why some of it was not.

    An update is a text, or `{about: patterns | repo | decisions, text}`. Whatever it says to be about, it is kept for
    `repo`, where it was learned, with the `source`. What is known already becomes the newest, so that the same updates
    can be applied twice.
    """
    if not isinstance(updates, list | tuple):
        return (f"updates of memory are a list, not {one_line(updates)[:_UPDATE_LENGTH_MAX]}",)
    refused: list[str] = []
    lines: list[str] = []
    for update in updates:
        try:
            learned = msgspec.convert({"text": update} if isinstance(update, str) else update, MemoryUpdate)
        except msgspec.ValidationError as error:
            refused.append(f"this is no update of memory: {error}")
            continue
        text = one_line(learned.text)[:_UPDATE_LENGTH_MAX]
        if not text:
            refused.append("an update of memory has no text")
        elif learned.about == _REPO and not repo:
            refused.append(f"there is no repository that this could be about: {text}")
        else:
            lines.append(f"- {text} [{_origin(learned.about, repo, source)}]")
    if lines:
        directory = Path(directory)
        with _locked(_inside(directory, _FOLDER)):
            _append(directory, _sort(repo), repo, lines)
    return tuple(refused)


def earlier_files(directory: Path, files: Collection[str] = ()) -> list[Path]:
    """Return what an earlier version wrote about one repository each, but for `files` that the package names itself."""
    found = sorted((directory / _FOLDER).glob("repo-*.md"))
    return [file for file in found if str(file.relative_to(directory)) not in files]


def take_over_file(directory: Path, file: Path, repo: str) -> None:
    """Let what an earlier version wrote be the oldest that is known of a repository."""
    with _locked(_inside(directory, _FOLDER)):
        # What cannot be read must not be removed below.
        text = _inside(directory, str(file.relative_to(directory))).read_text(encoding="utf-8", errors="replace")
        kept = _kept(directory, _REPO, repo).splitlines()
        known = {_said(line) for line in kept}
        lines = [*(line for line in text.splitlines() if _said(line) not in known), *kept]
        write_atomically(
            _inside(directory, _FOLDER) / _file(directory, _REPO, repo).name,
            newest_lines("".join(f"{line}\n" for line in lines), _BYTES_MAX[_REPO]),
        )
        file.unlink(missing_ok=True)


def remembered(directory: Path | str) -> list[Sentence]:
    """Return every sentence that a package remembers, those for every repository first."""
    directory = Path(directory)
    files = sorted(_inside(directory, _FOLDER).rglob("*.md"), key=lambda file: (file.stem not in _EVERYWHERE, file))
    return [
        Sentence(
            text=_said(line),
            origin=found[1] if (found := _ORIGIN.search(line)) else "",
            everywhere=file.stem in _EVERYWHERE,
            file=str(file.relative_to(directory.resolve())),
        )
        for file in files
        for line in _text(directory, str(file.relative_to(directory.resolve())), LOADED_BYTES_MAX).splitlines()
        if line.strip()
    ]


def promote(directory: Path | str, words: str) -> Sentence:
    """Let the one sentence of a repository that has these words count for every repository, and return it."""
    directory = Path(directory)
    with _locked(_inside(directory, _FOLDER)):
        kept = [each for each in remembered(directory) if not each.everywhere]
        fitting = [each for each in kept if words.strip().lower() in each.text.lower()]
        if not words.strip() or not fitting:
            raise NotFound(f"no sentence of a repository has the words {words!r}: look at all of them first")
        if len({each.text for each in fitting}) > 1:
            shown = "; ".join(each.text for each in fitting)
            raise Ambiguous(f"{words!r} can mean each of these, write more of one: {shown}")
        chosen = fitting[-1]
        about = _DECISIONS if chosen.origin.startswith(f"{_DECISIONS} of ") else _PATTERNS
        _append(directory, about, "", [f"- {chosen.text}" + (f" [{chosen.origin}]" if chosen.origin else "")])
        for file in {each.file for each in fitting}:
            lines = _text(directory, file, LOADED_BYTES_MAX).splitlines()
            left = "".join(f"{line}\n" for line in lines if _said(line) != chosen.text)
            write_atomically(_inside(directory, file), left)
    return chosen


def _sort(repo: str) -> str:
    return _REPO if repo else _ELSEWHERE


def _origin(about: str, repo: str, source: str) -> str:
    place = one_line(repo) or "no repository"
    return ", ".join(part for part in (place if about == _REPO else f"{about} of {place}", source) if part)


def _said(line: str) -> str:
    return _ORIGIN.sub("", line).removeprefix("- ")


def _append(directory: Path, about: str, repo: str, added: list[str]) -> None:
    said = {_said(line): line for line in added}
    old = [line for line in _kept(directory, about, repo).splitlines() if _said(line) not in said]
    text = "".join(f"{line}\n" for line in [*old, *said.values()])
    file = _inside(directory, _FOLDER) / _file(directory, about, repo).name
    write_atomically(file, newest_lines(text, _BYTES_MAX[about]))


def _kept(directory: Path, about: str, repo: str) -> str:
    return _text(directory, str(_file(directory, about, repo).relative_to(directory)), _BYTES_MAX[about])


def _file(directory: Path, about: str, repo: str) -> Path:
    return directory / _FOLDER / (f"repository-{unique_name(repo)}.md" if about == _REPO else f"{about}.md")


def _text(directory: Path, name: str, bytes_max: int) -> str:
    """Return the newest lines of a file; nothing where there is none."""
    try:
        text = _inside(directory, name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return newest_lines(text, bytes_max)


def _inside(directory: Path, name: str) -> Path:
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise Misconfigured(f"{directory / name} leads out of the package: keep what it remembers inside")
    return path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change the memory."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
