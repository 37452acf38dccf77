"""The page on the source documents names every open row of the audit, and only places that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.documentation.surroundings import ROOT

PAGE = ROOT / "docs" / "source-documents.md"
ROWS = Path(__file__).with_name("source_rows.txt").read_text().split()
_ROW = re.compile(r"\b00[0-4]-\d{3}\b")
_MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|sql))`")
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def unnamed(text: str) -> list[str]:
    """Return the rows of the audit that a text does not name."""
    named = set(_ROW.findall(text))
    return [row for row in ROWS if row not in named]


def missing_places(text: str) -> Iterator[str]:
    """Yield each module and each page that a text names and that does not exist."""
    yield from (name for name in _MODULE.findall(text) if not (ROOT / "src" / "kingdom" / name).is_file())
    yield from (name for name in _LINK.findall(text) if not (PAGE.parent / name).is_file())


def sections(text: str) -> list[tuple[str, str, str]]:
    """Return the cells of every row of the tables."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [
        (first.strip(), second, third.strip())
        for first, second, third in lines
        if first.strip() not in ("Section", "---")
    ]


def test_every_open_row_is_named_and_no_other() -> None:
    text = PAGE.read_text()
    assert unnamed(text) == []
    assert set(_ROW.findall(text)) == set(ROWS)
    assert len(set(ROWS)) == len(ROWS) == 103


def test_every_named_module_and_page_exists() -> None:
    assert list(missing_places(PAGE.read_text())) == []


def test_every_section_has_a_place_and_shows_the_differences() -> None:
    rows = sections(PAGE.read_text())
    assert len(rows) > 60
    for section, place, difference in rows:
        assert _MODULE.search(place) or _LINK.search(place), section
        assert difference.endswith("."), section


def test_a_removed_row_or_module_is_noticed() -> None:
    text = PAGE.read_text()
    assert unnamed(text.replace("004-087", "")) == ["004-087"]
    renamed = text.replace("`bus/envelope.py`", "`bus/letter.py`").replace("(scale.md)", "(size.md)")
    assert list(missing_places(renamed)) == ["bus/letter.py", "size.md"]
