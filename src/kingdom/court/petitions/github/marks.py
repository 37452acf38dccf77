"""The marks at the end of our texts on GitHub, by which they are found again. This module does no I/O."""

from collections.abc import Collection, Mapping
from typing import Any

from kingdom.bus.effects.effect import Attempt
from kingdom.court.petitions.effects import without_forbidden_commands

# The last line of a summary begins with this.
SUMMARY_MARK = "<!-- kingdom:summary -->"


def is_by(logins: Collection[str], item: Mapping[str, Any]) -> bool:
    """Return whether one of these users, in lower case, wrote an item."""
    author = item.get("user")
    return isinstance(author, dict) and str(author.get("login")).lower() in logins


def marked(text: str, attempt: Attempt, first_mark: str = "") -> str:
    """Return a text in the form in which it is sent: without forbidden commands, and with the mark."""
    mark = f"{first_mark}<!-- kingdom:{attempt.identifier} {attempt.request['mark']} -->"
    return f"{without_forbidden_commands(text, attempt).rstrip()}\n\n{mark}".lstrip()


def is_summary(text: Any) -> bool:
    """Return whether a text of ours is a summary. No agent can imitate it, since its mark is in our last line."""
    return isinstance(text, str) and text.rstrip().rpartition("\n")[2].startswith(SUMMARY_MARK)


def is_marked(text: Any, attempt: Attempt) -> bool:
    """Return whether an attempt of the same petition wrote this text."""
    return isinstance(text, str) and text.rstrip().endswith(f" {attempt.request['mark']} -->")
