"""Which line comments of a review GitHub accepts: those on lines of the diff. The others move into the text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from kingdom.court.petitions.bodies import LineComment

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def diff_lines(files: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, int]]:
    """Return path, side and number of every line that a diff shows. GitHub leaves out the patch of a large file."""
    found = set()
    for file in files:
        path, old, new = str(file.get("filename")), 0, 0
        # Unlike splitlines(), this splits at line feeds only.
        for line in StringIO(str(file.get("patch") or "")):
            if hunk := _HUNK.match(line):
                old, new = int(hunk[1]), int(hunk[2])
            elif line.startswith("+"):
                found.add((path, "RIGHT", new))
                new += 1
            elif line.startswith("-"):
                found.add((path, "LEFT", old))
                old += 1
            elif not line.startswith("\\"):
                found |= {(path, "LEFT", old), (path, "RIGHT", new)}
                old, new = old + 1, new + 1
    return found


def split_comments(
    comments: Sequence[LineComment], lines: set[tuple[str, str, int]]
) -> tuple[list[LineComment], list[LineComment]]:
    """Return the comments on lines of a diff, and the others."""
    inside = [each for each in comments if (each.path, each.side, each.line) in lines]
    return inside, [each for each in comments if each not in inside]


def text_with_comments(text: str, comments: Sequence[LineComment]) -> str:
    """Return a text that also contains line comments."""
    # A command such as `/merge` is disabled only at the start of a line, so the text of a comment begins there.
    moved = (f"`{each.path}` line {each.line}:\n{each.body}" for each in comments)
    return "\n\n".join(part for part in (text, *moved) if part)
