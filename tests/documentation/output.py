"""Compare the output of a command with its page; `…` matches anything."""

import re
from collections.abc import Sequence

_ANYTHING = "…"


def is_shown(printed: str, shown: Sequence[str], *, goes_on: bool = False) -> bool:
    """Return whether the output matches the page; a terminal may print more afterwards."""
    pattern = _pattern(shown)
    text = _plain(printed)
    return bool(pattern.match(text)) if goes_on else bool(pattern.fullmatch(text))


def _pattern(shown: Sequence[str]) -> re.Pattern[str]:
    parts = []
    for line in shown:
        if line.strip() == _ANYTHING:
            parts.append(r"(?:.*\n)*?")
        else:
            # `…` may also match the spaces around it.
            between = re.split(rf" *{_ANYTHING} *", line.rstrip())
            parts.append(".*".join(re.escape(part) for part in between) + r"\n")
    return re.compile("".join(parts))


def _plain(printed: str) -> str:
    lines = [line.rstrip() for line in printed.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in lines)
