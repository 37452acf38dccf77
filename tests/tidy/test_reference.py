"""Check that the pages of the reference are the generated ones, and complete."""

import re
from pathlib import Path

import pytest

from kingdom.cli.nouns import NOUNS, WORDS
from kingdom.cli.reference.commands import commands_of
from kingdom.cli.reference.environment import VARIABLES
from kingdom.cli.reference.pages import PAGES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kingdom"
PLACE = ROOT / "docs" / "reference"
_NAMED = re.compile(r'"([A-Z][A-Z_]*)"')
_OURS = re.compile(r"KINGDOM_[A-Z_]+")
# Only the settings read the environment; other modules ask them.
_READ = re.compile(r'\b(?:environ\.get|read_environment|read|_flag)\(\s*"([A-Z][A-Z_]*)"')


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_the_generated_one(name: str) -> None:
    hint = f"run: .venv/bin/python -m kingdom.cli.reference {name} > docs/reference/{name}.md"
    assert (PLACE / f"{name}.md").read_text(encoding="utf-8") == PAGES[name](), hint


def test_every_command_is_on_the_page() -> None:
    shown = {section.partition("\n")[0] for section in PAGES["cli"]().split("\n### kingdom ")[1:]}
    assert shown == {words for noun in NOUNS for words, _ in commands_of(noun)} | (WORDS.keys() - set(NOUNS))


def test_every_variable_of_the_environment_is_listed() -> None:
    listed = {name for section in VARIABLES.values() for name in section}
    code = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.parent.name != "reference"]
    named = {name for text in code for name in _NAMED.findall(text)}
    read = {name for text in code for name in _READ.findall(text)}
    assert {"DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_THROUGH_PGBOUNCER"} <= read
    assert (read | {name for name in named if _OURS.fullmatch(name)}) - listed == set()
    # A variable that the code no longer reads must not stay on the page.
    assert listed - named == set()
