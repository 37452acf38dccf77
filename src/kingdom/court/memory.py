"""What a General has learned: small files in its package, shown to its agents and written with what they report.

    memory/patterns.md                   what is true everywhere, at most 5 KB
    memory/repository-{owner}.{name}.md  what is true of one repository, at most 3 KB
    memory/decisions.md                  what was decided, at most 3 KB

The oldest lines go when a file is full. What agents report was drawn from foreign text, so it stays on one line each.
"""

import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from kingdom.court.prompt import newest_lines, one_line
from kingdom.errors import Misconfigured
from kingdom.whole_file import write_whole
from kingdom.workflow.model.git import unique_name

LOADED_BYTES_MAX = 50 * 1024
_FOLDER = "memory"
_BYTES_MAX = {"patterns": 5 * 1024, "repo": 3 * 1024, "decisions": 3 * 1024}
_UPDATE_LENGTH_MAX = 500


class MemoryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent learned; `repo` is the repository that it worked in, it cannot name another."""

    text: str
    about: Literal["patterns", "repo", "decisions"] = "patterns"


def load_memory(directory: Path | str, repo: str, files: Sequence[str] = ()) -> str:
    """Return what a package remembers for work in a repository; `files` are more of its files to show."""
    directory = Path(directory)
    found = [("Patterns", _kept(directory, "patterns", repo))]
    if repo:
        found.append((f"Repository {one_line(repo)}", _kept(directory, "repo", repo)))
    found.append(("Decisions", _kept(directory, "decisions", repo)))
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


def apply_memory_updates(directory: Path | str, updates: object, repo: str = "") -> tuple[str, ...]:
    """Write down what an agent reports to have learned, and return why some of it was not.

    An update is a text, or `{about: patterns | repo | decisions, text}`; `repo` is the repository that it can be about.
    What is known already becomes the newest, so that the same updates can be applied twice.
    """
    if not isinstance(updates, list | tuple):
        return (f"updates of memory are a list, not {one_line(updates)[:_UPDATE_LENGTH_MAX]}",)
    refused: list[str] = []
    lines: dict[str, list[str]] = {}
    for update in updates:
        try:
            learned = msgspec.convert({"text": update} if isinstance(update, str) else update, MemoryUpdate)
        except msgspec.ValidationError as error:
            refused.append(f"this is no update of memory: {error}")
            continue
        text = one_line(learned.text)[:_UPDATE_LENGTH_MAX]
        if not text:
            refused.append("an update of memory has no text")
        elif learned.about == "repo" and not repo:
            refused.append(f"there is no repository that this could be about: {text}")
        else:
            lines.setdefault(learned.about, []).append(f"- {text}")
    if lines:
        directory = Path(directory)
        with _locked(_inside(directory, _FOLDER)):
            for about, added in lines.items():
                _append(directory, about, repo, added)
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
        lines = dict.fromkeys([*text.splitlines(), *_kept(directory, "repo", repo).splitlines()])
        write_whole(
            _inside(directory, _FOLDER) / _file(directory, "repo", repo).name,
            newest_lines("".join(f"{line}\n" for line in lines), _BYTES_MAX["repo"]),
        )
        file.unlink(missing_ok=True)


def _append(directory: Path, about: str, repo: str, added: list[str]) -> None:
    old = [line for line in _kept(directory, about, repo).splitlines() if line not in added]
    text = "".join(f"{line}\n" for line in [*old, *dict.fromkeys(added)])
    file = _inside(directory, _FOLDER) / _file(directory, about, repo).name
    write_whole(file, newest_lines(text, _BYTES_MAX[about]))


def _kept(directory: Path, about: str, repo: str) -> str:
    return _text(directory, str(_file(directory, about, repo).relative_to(directory)), _BYTES_MAX[about])


def _file(directory: Path, about: str, repo: str) -> Path:
    return directory / _FOLDER / (f"repository-{unique_name(repo)}.md" if about == "repo" else f"{about}.md")


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
