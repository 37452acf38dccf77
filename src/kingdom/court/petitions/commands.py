"""Commands to bots in texts of agents: people read them, and no bot obeys them. Pure."""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

# Breaks a name for programs and is no space to any of them; readers do not see it. A code span would not do: many bots
# search the raw text of a comment, code and quotations included.
_BREAK = "\N{ZERO WIDTH SPACE}"
# GitHub finds a name behind anything but a letter or a digit, and only after entities have become letters.
_AT = re.compile(
    r"(?<![A-Za-z0-9])(?P<sign>@|&commat;|&#0*64;|&#[xX]0*40;)(?P<name>[\w-]+(?:\[bot\]|/[\w.-]+)?|(?=\S))"
)
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
# Whatever else a line begins with, white space or marks of Markdown, a bot may take it off.
_SLASH = re.compile(rf"(?P<ahead>(?:\A|[{_BREAKS}])(?:[^\w/{_BREAKS}]|_)*/)(?P<name>\w[\w-]*)")


def without_commands(text: str, allowed: Collection[str] = ()) -> str:
    """Return a text that looks the same, in which no mention and no line of the form `/word` is a command to a bot.

    All mentions count, since a name does not tell whether it is a bot's. `allowed` are globs, such as `/retest` and
    `@acme/*`, for what goes out as it is.
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
