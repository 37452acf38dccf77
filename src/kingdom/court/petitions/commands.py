"""Disable commands to bots and CI in texts of agents, without changing how the texts look. This module does no I/O."""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

# This character is invisible to readers, and programs do not strip it as a space, so a bot does not find the name after
# it. A code span is not enough, because many bots search the raw text of a comment.
_INVISIBLE = "\N{ZERO WIDTH SPACE}"
# GitHub decodes HTML entities first. Then it finds mentions after every character except letters and digits.
_MENTION = re.compile(
    r"(?<![A-Za-z0-9])(?P<sign>@|&commat;|&#0*64;|&#[xX]0*40;)(?P<name>[\w-]+(?:\[bot\]|/[\w.-]+)?|(?=\S))"
)
_LINE_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
# A bot may strip white space and Markdown at the start of a line.
_SLASH_COMMAND = re.compile(rf"(?P<ahead>(?:\A|[{_LINE_BREAKS}])(?:[^\w/{_LINE_BREAKS}]|_)*/)(?P<name>\w[\w-]*)")
# CI skips a commit whose message has one of these: [skip ci], [no ci], [ci skip] and relatives. The text of a pull
# request can become the message of its merge. The repeats are limited, because unlimited ones take quadratic time.
_SKIP_COMMAND = re.compile(
    r"""(?ix)
    (?P<ahead>\[\s{0,9})(?=(?:skip|no)[\s_-]{1,9}[\w\s.-]{0,60}\] | [\w.-]{1,60}[\s_-]{1,9}skip\s{0,9}\])
    | (?P<stars>\*\*\*)(?=no_ci\*\*\*)
    | (?P<trailer>\bskip-)(?=checks\s*:)
    """
)


def without_commands(text: str, allowed: Collection[str] = ()) -> str:
    """Return a text that looks the same, but in which mentions, lines such as `/word`, and `[skip ci]` have no effect.

    All mentions are disabled, since a name does not show whether it is a bot. Commands that match a glob in `allowed`,
    such as `/retest` or `@acme/*`, are kept.
    """
    wanted = [glob.lower() for glob in allowed]

    def mention(found: re.Match[str]) -> str:
        if _is_allowed(f"@{found['name']}", wanted):
            return found[0]
        return f"{found['sign']}{_INVISIBLE}{found['name']}"

    def slash_command(found: re.Match[str]) -> str:
        if _is_allowed(f"/{found['name']}", wanted):
            return found[0]
        return f"{found['ahead']}{_INVISIBLE}{found['name']}"

    without_skips = _SKIP_COMMAND.sub(lambda found: f"{found[0]}{_INVISIBLE}", text)
    return _SLASH_COMMAND.sub(slash_command, _MENTION.sub(mention, without_skips))


def _is_allowed(command: str, wanted: Collection[str]) -> bool:
    return any(fnmatchcase(command.lower(), glob) for glob in wanted)
