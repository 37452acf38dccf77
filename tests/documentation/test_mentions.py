"""Check that every command and option that a page mentions exists."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kingdom.cli.dispatch import command_of
from kingdom.cli.nouns import ALIASES, WORDS
from tests.documentation.surroundings import ROOT

PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
# The changelog names removed commands, and the page on completion shows half a word.
_APART = {"CHANGELOG.md", "docs/how-to/shell-completion.md"}
_FENCED = re.compile(r"^ *(`{3,}).*?^ *\1`*$", re.DOTALL | re.MULTILINE)
_MENTIONED = re.compile(r"`kingdom ([^`]+)`")
_WORD = re.compile(r"[a-z][a-z-]*")
_OPTION = re.compile(r"--[a-z][a-z-]*")

command = cache(command_of)


def mentioned(page: Path) -> set[str]:
    prose = _FENCED.sub("", page.read_text())
    return {" ".join(found.split()) for found in _MENTIONED.findall(prose)}


def wrong_in(mention: str) -> Iterator[str]:
    """Yield each noun, verb or option of a mention that does not exist."""
    words = mention.partition("|")[0].split()
    if not _WORD.fullmatch(words[0]):
        return
    if words[0] not in WORDS:
        yield f"no command {words[0]!r}"
        return
    noun, *verbs = ALIASES.get(words[0], [words[0]])
    rest = [*verbs, *words[1:]]
    found: Any = command(noun)
    while verbs_of := getattr(found, "commands", None):
        if not rest or not _WORD.fullmatch(rest[0]):
            return
        if rest[0] not in verbs_of:
            yield f"no verb {rest[0]!r}"
            return
        found = verbs_of[rest.pop(0)]
    known = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in rest:
        option = _OPTION.match(word)
        if option and option[0] not in known:
            yield f"no option {option[0]}"


def test_everything_that_a_page_mentions_exists() -> None:
    names = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
    read = {name: page for name, page in names.items() if name not in _APART}
    found = [
        (name, mention, wrong)
        for name, page in read.items()
        for mention in mentioned(page)
        for wrong in wrong_in(mention)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("mention", "wrong"),
    [
        ("status --json", []),
        ("bus dead list --stream NAME", []),
        ("workflow …", []),
        ("send --type demo.hello", []),
        ("statsu", ["no command 'statsu'"]),
        ("bus dead lits", ["no verb 'lits'"]),
        ("status --wacht", ["no option --wacht"]),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(mention: str, wrong: list[str]) -> None:
    assert list(wrong_in(mention)) == wrong
