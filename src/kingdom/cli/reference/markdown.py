"""Markdown for the pages of the reference."""

from collections.abc import Iterable, Iterator, Sequence


def beginning(title: str, name: str, words: str) -> str:
    """Return the head of a page, which says how it is generated."""
    origin = f"<!-- Written by `python -m kingdom.cli.reference {name}`; a test checks that it is current. -->"
    return f"# {title}\n\n{origin}\n\n{words}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with escaped cells."""
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for cells in rows:
        yield _row([" ".join(cell.split()).replace("|", "\\|") for cell in cells])
    yield ""


def code(text: str) -> str:
    """Return text as code, or nothing for an empty text."""
    return f"`{text}`" if text else ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
