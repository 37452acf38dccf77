"""`kingdom --help`, drawn by hand: what draws the help of the commands takes longer to load than to read."""

import shutil
import sys

from kingdom.cli.nouns import ALIASES, GROUPS

_WHAT = "Kingdom runs AI coding agents on a durable event bus."
_USAGE_WORD = "Usage:"
_USAGE = "kingdom COMMAND [VERB] [ARGUMENTS] [OPTIONS]"
_MORE = (
    "Every command tells more, with an example: kingdom COMMAND --help. Almost all answer in JSON with --json.",
    (
        "Exit codes: 0 done, 1 it failed or was not found, 2 wrong usage or settings, 3 the store cannot be reached,"
        " 4 a run waits for a person."
    ),
)
_PIPE_WIDTH = 100
_USUAL_WIDTH = 80
_NARROW = 40
_WIDE = 120
_BOLD, _CYAN = "1", "36"


def help_page(width: int, *, coloured: bool) -> str:
    """Return the help of the whole command line."""

    def paint(text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if coloured else text

    column = max(len(name) for group in GROUPS.values() for name in group) + 4
    usage, *more = wrapped(f"{_USAGE_WORD} {_USAGE}", width)
    lines = [*wrapped(_WHAT, width), "", usage.replace(_USAGE_WORD, paint(_USAGE_WORD, _BOLD)), *more]
    for title, group in GROUPS.items():
        lines += ["", paint(title, _BOLD)]
        for name, words in group.items():
            short = f" (= {' '.join(ALIASES[name])})" if name in ALIASES else ""
            first, *rest = wrapped(words.removesuffix(".") + short, width - column)
            lines.append(f"  {paint(name, _CYAN)}{' ' * (column - 2 - len(name))}{first}")
            lines += [" " * column + line for line in rest]
    lines += ["", paint("Options", _BOLD)]
    for name, words in (("--version", "Show the version and end"), ("--help, -h", "Show this and end")):
        lines.append(f"  {paint(name, _CYAN)}{' ' * (column - 2 - len(name))}{words}")
    for paragraph in _MORE:
        lines += ["", *wrapped(paragraph, width)]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of a width; a word that is longer has a line of its own."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def print_help() -> None:
    """Print the help as wide and as colourful as what it is printed to."""
    # COLUMNS counts most; not every terminal knows its width.
    usual = _USUAL_WIDTH if sys.stdout.isatty() else _PIPE_WIDTH
    width = shutil.get_terminal_size((usual, 0)).columns
    coloured = sys.stdout.isatty() and _may_colour()
    sys.stdout.write(f"{help_page(min(max(width, _NARROW), _WIDE), coloured=coloured)}\n")


def _may_colour() -> bool:
    # Only where there is a terminal, since it takes a moment to load.
    from kingdom.settings import read_environment

    return not read_environment("NO_COLOR") and read_environment("TERM") != "dumb"
