"""Check that the tests named on the page of guarantees exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(?P<file>[a-z/]+/test_\w+\.py|…)(?:::(?P<test>test_\w+))?`")


def named_tests(page: str) -> list[tuple[str, str | None]]:
    """Return every file and test that a page names; `…` repeats the file before it."""
    found: list[tuple[str, str | None]] = []
    file = ""
    for match in _NAMED.finditer(page):
        file = file if match["file"] == "…" else match["file"]
        found.append((file, match["test"]))
    return found


def missing(page: str) -> list[str]:
    return [
        f"{file}::{test}"
        for file, test in named_tests(page)
        if not (ROOT / "tests" / file).exists()
        or (test is not None and f"def {test}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8"))
    ]


def test_every_test_that_the_guarantees_name_exists() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert len(named_tests(page)) > 10
    assert missing(page) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    page = "`contract/test_leases.py::test_nobody_wrote_this`, `…::test_tokens_only_grow`, `contract/test_none.py`"
    assert missing(page) == ["contract/test_leases.py::test_nobody_wrote_this", "contract/test_none.py::None"]
