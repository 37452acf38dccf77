"""The files that changed last below a folder, as a table; it only looks at names, sizes and times."""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from kingdom.cli.output import ago, table

# There may be any number of files; looking at them must not take long.
_LOOKED_AT_MAX = 20_000
_KILO = 1024


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file, when it was last written, and its size."""

    path: str
    at: float
    size: int


def changed_files(folder: Path, limit: int) -> list[ChangedFile]:
    """Return the files that were written last, the latest first; links are not followed, Git's own files left out."""
    return sorted(_files(folder), key=lambda file: file.at, reverse=True)[:limit]


def files_view(files: Iterable[ChangedFile], now: float) -> Table:
    """Return files as a table."""
    rows = [(f"{ago(max(now - file.at, 0))} ago", _size(file.size), file.path) for file in files]
    return table(("written", "size", "file"), rows)


def _files(top: Path) -> Iterator[ChangedFile]:
    folders = [top]
    left = _LOOKED_AT_MAX
    while folders and left > 0:
        for path in _entries(folders.pop()):
            left -= 1
            try:
                status = path.lstat()
            except OSError:
                # An agent is at work here: what was there a moment ago may be gone.
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            elif stat.S_ISREG(status.st_mode):
                yield ChangedFile(str(path.relative_to(top)), status.st_mtime, status.st_size)


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name != ".git"]
    except OSError:
        return []


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size:.0f} {unit}"
        size /= _KILO
    return f"{size:.0f} GB"
