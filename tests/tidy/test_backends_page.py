"""Check that the page on backends lists every constant in which they differ, with its value."""

import re
from pathlib import Path
from typing import get_type_hints

from kingdom.backends.files import FilesBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Bus
from tests.contract.kafka_backend import DIFFERENCES, FILES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "backends.md"
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<files>True|False) \| (?P<postgres>True|False) \|", re.MULTILINE)


def listed(page: str) -> dict[str, tuple[bool, bool]]:
    return {row["name"]: (row["files"] == "True", row["postgres"] == "True") for row in _ROW.finditer(page)}


def test_every_difference_is_listed_with_its_values() -> None:
    constants = {name for name, kind in get_type_hints(Bus).items() if kind is bool}
    assert constants
    true = {name: (getattr(FilesBus, name), getattr(PostgresBus, name)) for name in constants}
    assert listed(PAGE.read_text(encoding="utf-8")) == true


def test_a_wrong_value_on_the_page_is_found() -> None:
    wrong = PAGE.read_text(encoding="utf-8").replace("| `spans_hosts` | False", "| `spans_hosts` | True")
    assert listed(wrong)["spans_hosts"] == (True, True)


def test_every_difference_of_a_stream_on_kafka_is_listed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in DIFFERENCES if f"\n| {row} | " not in page] == []


def test_every_contract_test_that_is_excluded_on_kafka_exists() -> None:
    files = "".join((ROOT / "tests" / "contract" / name).read_text(encoding="utf-8") for name in FILES)
    names = [name for names in DIFFERENCES.values() for name in names]
    assert [name for name in names if f"def {name}(" not in files] == []
