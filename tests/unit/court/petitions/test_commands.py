"""People read the text of an agent unchanged, and no bot executes a command in it."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.petitions.commands import without_commands

UNSEEN = "\N{ZERO WIDTH SPACE}"
# How bots find their commands: in the raw text, at the beginning of a line or after their name.
BOTS = (
    re.compile(r"(?im)^\s*/(approve|lgtm|merge|deploy)\b"),
    re.compile(r"(?i)(?<![a-z0-9])@(dependabot|mergifyio|bors|copilot)"),
    re.compile(r"(?i)\[(skip ci|ci skip|no ci|skip actions|actions skip|skip-ci|ci-skip|skip netlify)\]"),
    re.compile(r"(?im)^skip-checks:\s*true|\*\*\*no_ci\*\*\*"),
)
COMMANDS = [
    "@dependabot merge",
    "@Mergifyio queue default",
    "/approve",
    "Fine.\n/lgtm",
    "Fine.\r\n   /LGTM no-issue\r\n",
    "\N{LINE SEPARATOR}/merge",
    "> /approve",
    "- **/approve**",
    "```\n/approve\n@bors r+\n```",
    "`@bors r+`",
    "<!--\n/approve\n@dependabot merge\n-->",
    "_@copilot_ do this",
    "_/approve_",
    "é@copilot",
    "(@copilot)",
    "\N{ZERO WIDTH NO-BREAK SPACE}/approve",
    "Fix the typo [skip ci]",
    "[CI SKIP] Fix the typo",
    "docs: [no ci] [skip actions] [actions skip]",
    "[skip-ci] and [ci-skip]",
    "[skip netlify]",
    "Fix it.\n\nskip-checks: true",
    "***NO_CI***",
]
PLAIN = [
    "Write to anna@acme.org, clone git@github.com:acme/shop.git, use actions/checkout@v4.",
    "See https://github.com/acme/shop/pull/7 and src/deploy/merge.py; GET /healthz answers 500.",
    "// a comment\n/* another */\n/",
    "a @ b, 5 @",
    "[x] done, [ ] skip this, [skip](https://example.com), a[skip], [no](b), [skip the rest of it, please]",
    "***bold***",
    "",
]


def _without_markup(text: str) -> str:
    """Return a text as it looks to bots that remove markup first, and that split lines differently than Python."""
    return "\n".join(line.strip("\ufeff>-*_ ") for line in text.splitlines())


@pytest.mark.parametrize("text", ["[skip" + "_" * 60_000, "[" + "a-" * 30_000, "[skip" * 12_000, "[" + " " * 60_000])
def test_a_long_text_takes_no_quadratic_time(text: str) -> None:
    began = time.process_time()
    assert without_commands(text) == text
    assert time.process_time() - began < 5, "a quadratic search would take about a minute"


@pytest.mark.parametrize("text", COMMANDS)
def test_no_bot_finds_a_command_and_people_read_the_same(text: str) -> None:
    cleaned = without_commands(text)
    assert any(bot.search(text) or bot.search(_without_markup(text)) for bot in BOTS)
    assert not any(bot.search(cleaned) or bot.search(_without_markup(cleaned)) for bot in BOTS)
    assert cleaned.replace(UNSEEN, "") == text


@pytest.mark.parametrize("text", ["&#64;copilot fix it", "&#x40;copilot", "&commat;copilot", "@&#99;opilot"])
def test_a_mention_that_is_written_with_html_entities_is_disabled_too(text: str) -> None:
    assert re.search(rf"(@|;){UNSEEN}", without_commands(text))


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_a_command_stays_unchanged(text: str) -> None:
    assert without_commands(text) == text


def test_commands_that_the_policy_lists_are_sent_unchanged() -> None:
    text = "@dana please look, @acme/core too.\n/retest unit\n/merge\n@dependabot merge"
    cleaned = without_commands(text, ["/retest", "@Dana", "@acme/*"])
    assert cleaned == text.replace("/merge", f"/{UNSEEN}merge").replace("@dep", f"@{UNSEEN}dep")


@given(st.text(st.sampled_from("@/ab1 \n\r_`>-&#64;[]."), max_size=60))
def test_no_text_has_a_command_left_and_none_is_changed_otherwise(text: str) -> None:
    cleaned = without_commands(text)
    assert cleaned.replace(UNSEEN, "") == text
    assert not re.search(r"(?<![A-Za-z0-9])@[A-Za-z0-9]", cleaned)
    assert not re.search(r"(?m)^[\s>`_.-]*/[a-z0-9]", cleaned)


def test_disabling_commands_in_a_long_repetitive_text_is_fast() -> None:
    for part in ("\n", " ", "@", "/", "&#0", "&#00", "\n>"):
        assert without_commands(part * 60_000)
