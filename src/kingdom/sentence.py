"""Words of others in what we say: a sentence ends once, an unknown reason leaves no trace, nothing steers a screen."""

_ENDS = (".", "!", "?", "…")
_CLOSING = "\"')]`*_"


def sentence(words: str) -> str:
    """Return words with a full stop behind them, unless they end as a sentence does."""
    said = words.rstrip()
    return said if said.rstrip(_CLOSING).endswith(_ENDS) else f"{said}."


def with_reason(what: str, why: str) -> str:
    """Return what happened, and behind a colon why, if that is known."""
    return f"{what}: {why.strip()}" if why.strip() else what


def printable(text: str) -> str:
    """Return text in which control characters are visible: what events carry must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def plain(text: object) -> str:
    """Return text on one line in which control characters are visible."""
    return printable(" ".join(str(text).split()))
