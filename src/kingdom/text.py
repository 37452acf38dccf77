"""Format text for messages: end sentences, add reasons, escape control characters, and format durations."""

_ENDS = (".", "!", "?", "…")
_CLOSING = "\"')]`*_"


def sentence(words: str) -> str:
    """Return words with a period, unless they already end like a sentence."""
    text = words.rstrip()
    return text if text.rstrip(_CLOSING).endswith(_ENDS) else f"{text}."


def with_reason(what: str, why: str) -> str:
    """Return what happened, followed by a colon and the reason if one is known."""
    return f"{what}: {why.strip()}" if why.strip() else what


def printable(text: str) -> str:
    """Return text with escaped control characters, so that untrusted text cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def plain(text: object) -> str:
    """Return text on one line, with escaped control characters."""
    return printable(" ".join(str(text).split()))


def with_noun(number: int, one: str, more: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def format_age(seconds: float) -> str:
    """Format an age in one whole unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_duration(seconds: float) -> str:
    """Format a duration for a person."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
