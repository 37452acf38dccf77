"""Check how a page is parsed, and which pages are rejected."""

import pytest

from tests.documentation.output import is_shown
from tests.documentation.page import Command, UnclearPage, console_blocks, fenced_blocks

PAGE = """\
# A page

```yaml
$ not: a command
```

<!-- shell: with postgres, with stand-ins -->
```console
$ echo one   # why
one
$ printf 'a\\n' \\
    | cat

$ cat <<EOF > file
$ of the text
EOF
```

- in a list

  <!-- shell: terminal until "role started" -->
  ```console
  $ kingdom up
  ```

````markdown
```console
$ shown, not run
```
````

<!-- shell: fails -->
```console
$ false
```
"""


def test_a_page_is_read_in_its_order() -> None:
    first, second, third = console_blocks(PAGE)
    assert first.surroundings == ("postgres", "stand-ins")
    assert first.commands == (
        Command(9, "echo one   # why", ("one",)),
        Command(11, "printf 'a\\n' \\\n    | cat"),
        Command(14, "cat <<EOF > file\n$ of the text\nEOF"),
    )
    assert (second.commands, second.is_terminal, second.until) == ((Command(23, "kingdom up"),), True, "role started")
    assert (third.fails, third.is_terminal) == (True, False)


def test_every_fenced_block_is_seen_with_its_language() -> None:
    assert [each.language for each in fenced_blocks(PAGE)] == ["yaml", "console", "console", "markdown", "console"]


@pytest.mark.parametrize(
    "page",
    [
        "```console\noutput without a command\n```\n",
        "```console\n```\n",
        "```console\n$ never closed\n",
        "```console\n$ cat <<EOF\nnever ended\n```\n",
        "<!-- shell: terminals -->\n```console\n$ true\n```\n",
        "<!-- shell: fails -->\nwords between\n```console\n$ true\n```\n",
        "<!-- shell: fails -->\n```text\n$ true\n```\n",
        "```console\n$ true\n```\n<!-- shell: with checkout -->\n```console\n$ true\n```\n",
        "<!-- shell: fails -->\n",
    ],
)
def test_an_ambiguous_page_is_refused(page: str) -> None:
    with pytest.raises(UnclearPage):
        console_blocks(page)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a  \n\nb\n\n", ["a", "", "b"]),
        ("run 17 of 20\n", ["run … of 20"]),
        ("a\nb\nc\n", ["a", "…"]),
        ("a\n", ["a", "…"]),
        ("a\nb\nc\n", ["…", "c"]),
        ("(a) [b] $5\n", ["(a) [b] $5"]),
    ],
)
def test_output_that_matches_the_page_is_accepted(printed: str, shown: list[str]) -> None:
    assert is_shown(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb\n", ["a"]),
        ("a\n", ["a", "b"]),
        ("run 17\n", ["run … of 20"]),
        ("ab\n", ["a"]),
        ("", ["a"]),
        ("abc\n", ["a.c"]),
    ],
)
def test_output_that_differs_from_the_page_is_not_accepted(printed: str, shown: list[str]) -> None:
    assert not is_shown(printed, shown)


def test_a_terminal_continues_after_the_shown_output() -> None:
    assert is_shown("one\ntwo\nthree\n", ["…", "two"], goes_on=True)
    assert not is_shown("one\nother", ["…", "two"], goes_on=True)
