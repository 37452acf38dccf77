"""Disable commands to bots in texts of agents, without changing how the texts look. Pure."""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

# Invisible to readers, and not a space to programs, so a bot does not find the name. A code span is not enough: many
# bots search the raw text of a comment.
_BREAK = "\N{ZERO WIDTH SPACE}"
# GitHub finds mentions after any character but letters and digits, and decodes entities first.
_AT = re.compile(
    r"(?<![A-Za-z0-9])(?P<sign>@|&commat;|&#0*64;|&#[xX]0*40;)(?P<name>[\w-]+(?:\[bot\]|/[\w.-]+)?|(?=\S))"
)
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
# A bot may strip white space and Markdown at the start of a line.
_SLASH = re.compile(rf"(?P<ahead>(?:\A|[{_BREAKS}])(?:[^\w/{_BREAKS}]|_)*/)(?P<name>\w[\w-]*)")


def without_commands(text: str, allowed: Collection[str] = ()) -> str:
    """Return a text that looks the same, but in which mentions and lines such as `/word` are not commands.

    All mentions count, since a name does not show whether it is a bot. `allowed` are globs such as `/retest` and
    `@acme/*` that are kept.
    """
    wanted = [glob.lower() for glob in allowed]

    def mention(found: re.Match[str]) -> str:
        if _is_allowed(f"@{found['name']}", wanted):
            return found[0]
        return f"{found['sign']}{_BREAK}{found['name']}"

    def order(found: re.Match[str]) -> str:
        if _is_allowed(f"/{found['name']}", wanted):
            return found[0]
        return f"{found['ahead']}{_BREAK}{found['name']}"

    return _SLASH.sub(order, _AT.sub(mention, text))


def _is_allowed(command: str, wanted: Collection[str]) -> bool:
    return any(fnmatchcase(command.lower(), glob) for glob in wanted)
