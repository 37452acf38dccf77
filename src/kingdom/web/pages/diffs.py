"""Diffs for pages: files, and lines with their meaning. The text comes from git, and its content from strangers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO

from aiohttp import web

from kingdom.soldiers.host.run_diffs import TreeDiff
from kingdom.web.api.transcripts import list_checkpoint_diffs, list_diffs
from kingdom.web.pages.frame import html_response
from kingdom.web.route import ApiCall

# A page shows this many lines of all diffs; the rest is in the download.
LINES_MAX = 3000
_HEADERS = (
    "index ",
    "old mode",
    "new mode",
    "new file",
    "deleted file",
    "similarity",
    "rename",
    "copy",
    "--- ",
    "+++ ",
)
_CSS_CLASSES = {"+": "add", "-": "del", "@": "hunk", "\\": "hunk"}


@dataclass(slots=True)
class FileDiff:
    """The changes of one file. Each line has its CSS class and its text."""

    path: str
    added: int = 0
    removed: int = 0
    lines: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShownDiff:
    """The diff of a checkout, and how many of its lines are left out."""

    tree: TreeDiff
    files: list[FileDiff]
    omitted: int


def show_diffs(diffs: Sequence[TreeDiff]) -> list[ShownDiff]:
    """Return diffs for a page, with at most LINES_MAX lines in all."""
    shown, left = [], LINES_MAX
    for tree in diffs:
        # splitlines() also splits at characters that a line of a file may contain.
        lines = [line.rstrip("\r\n") for line in StringIO(tree.diff)]
        shown.append(ShownDiff(tree, list(parse_diff(lines[:left])), max(len(lines) - left, 0)))
        left = max(left - len(lines), 0)
    return shown


def parse_diff(lines: Sequence[str]) -> Iterator[FileDiff]:
    """Yield the files of a unified diff."""
    current: FileDiff | None = None
    in_hunk = False
    for line in lines:
        if line.startswith("diff --git "):
            if current:
                yield current
            current, in_hunk = FileDiff(_path(line)), False
        elif current is None or (not in_hunk and line.startswith(_HEADERS)):
            continue
        else:
            in_hunk = in_hunk or line.startswith("@@")
            css_class = _CSS_CLASSES.get(line[:1], "") if in_hunk else "hunk"
            current.added += css_class == "add"
            current.removed += css_class == "del"
            current.lines.append((css_class, line))
    if current:
        yield current


async def show_diff(call: ApiCall) -> web.Response:
    """Return the changes of a run as an HTML fragment."""
    diffs = (await list_diffs(call)).items
    return html_response("diff.html", diffs=show_diffs(diffs))


async def show_checkpoint_diff(call: ApiCall) -> web.Response:
    """Return the changes of a checkpoint as an HTML fragment."""
    diffs = (await list_checkpoint_diffs(call)).items
    return html_response("diff.html", diffs=show_diffs(diffs))


async def download_diff(call: ApiCall) -> web.Response:
    """Return the changes of a run as text. A note, such as that a diff is cut, is a line before the diff."""
    diffs = (await list_diffs(call)).items
    text = "".join(map(_diff_as_text, diffs))
    return web.Response(
        text=text,
        content_type="text/plain",
        charset="utf-8",
        headers={"Content-Disposition": 'attachment; filename="changes.diff"'},
    )


def _diff_as_text(found: TreeDiff) -> str:
    # `git apply` ignores lines before a diff.
    note = f"# {found.git_id}: {found.note}\n" if found.note else ""
    # The last line of a cut diff may be incomplete.
    end = "" if found.diff.endswith("\n") or not found.diff else "\n"
    return f"{note}{found.diff}{end}"


def _path(line: str) -> str:
    """Return the new path of a line `diff --git a/OLD b/NEW`."""
    return line.removeprefix("diff --git ").rpartition(" b/")[2]
