"""The help of the whole command line, for narrow and wide terminals."""

import pytest

from kingdom.cli.help_page import help_page, wrapped
from kingdom.cli.nouns import ALIASES, GROUPS


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    page = help_page(width, colored=False)
    assert max(map(len, page.splitlines())) <= width
    assert "\x1b" not in page


def test_headings_and_names_are_colored_if_requested() -> None:
    page = help_page(80, colored=True)
    for title, group in GROUPS.items():
        assert f"\x1b[1m{title}\x1b[0m" in page
        assert all(f"\x1b[36m{name}\x1b[0m" in page for name in group)


def test_help_shows_what_an_alias_is_short_for() -> None:
    page = " ".join(help_page(80, colored=False).split())
    assert all(f"(= {' '.join(words)})" in page for words in ALIASES.values())


def test_a_word_that_is_too_long_has_a_line_of_its_own() -> None:
    assert wrapped("a bb cccccc d", 4) == ["a bb", "cccccc", "d"]
