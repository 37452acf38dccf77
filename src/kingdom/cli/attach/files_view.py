"""A table of the files that changed last in a folder."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from kingdom.cli.framework.output import table
from kingdom.soldiers.files.agent_files import list_files_below
from kingdom.text import format_duration

_UNIT_FACTOR = 1024


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file, the time `at` of its last change, and its size in bytes."""

    path: str
    at: float
    size: int


def changed_files(folder: Path, limit: int) -> list[ChangedFile]:
    """Return the files that changed last, the latest first, without links and files in `.git`."""
    found = [
        ChangedFile(each.file.name, each.modified_at, each.size)
        for each in list_files_below(folder, leaving_out=".git")
    ]
    return sorted(found, key=lambda file: file.at, reverse=True)[:limit]


def files_view(files: Iterable[ChangedFile], now: float) -> Table:
    """Return files as a table."""
    rows = [(f"{format_duration(max(now - file.at, 0))} ago", _size(file.size), file.path) for file in files]
    return table(("written", "size", "file"), rows)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _UNIT_FACTOR:
            return f"{size:.0f} {unit}"
        size /= _UNIT_FACTOR
    return f"{size:.0f} GB"
