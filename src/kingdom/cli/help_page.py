"""`kingdom --help`, formatted without rich, which takes too long to load."""

import shutil
import sys

from kingdom.cli.nouns import ALIASES, GROUPS

_SUMMARY = "Kingdom runs AI coding agents on a durable event bus."
_USAGE_WORD = "Usage:"
_USAGE = "kingdom COMMAND [VERB] [ARGUMENTS] [OPTIONS]"
_MORE = (
    "Details and examples: kingdom COMMAND --help. Almost every command prints JSON with --json.",
    (
        "Exit codes: 0 success, 1 failed or not found, 2 wrong usage or settings, 3 the store cannot be reached,"
        " 4 a run waits for a person."
    ),
)
# Widths in characters: of a pipe, of a terminal that reports none, and the limits for every page.
_PIPE_WIDTH = 100
_TERMINAL_WIDTH = 80
_WIDTH_MIN = 40
_WIDTH_MAX = 120
_BOLD, _CYAN = "1", "36"


def help_page(width: int, *, colored: bool) -> str:
    """Return the help of the whole command line."""

    def paint(text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if colored else text

    column = max(len(name) for group in GROUPS.values() for name in group) + 4
    usage, *more = wrapped(f"{_USAGE_WORD} {_USAGE}", width)
    lines = [*wrapped(_SUMMARY, width), "", usage.replace(_USAGE_WORD, paint(_USAGE_WORD, _BOLD)), *more]
    for title, group in GROUPS.items():
        lines += ["", paint(title, _BOLD)]
        for name, words in group.items():
            short = f" (= {' '.join(ALIASES[name])})" if name in ALIASES else ""
            first, *rest = wrapped(words.removesuffix(".") + short, width - column)
            lines.append(f"  {paint(name, _CYAN)}{' ' * (column - 2 - len(name))}{first}")
            lines += [" " * column + line for line in rest]
    lines += ["", paint("Options", _BOLD)]
    for name, words in (("--version", "Show the version and exit"), ("--help, -h", "Show this help and exit")):
        lines.append(f"  {paint(name, _CYAN)}{' ' * (column - 2 - len(name))}{words}")
    for paragraph in _MORE:
        lines += ["", *wrapped(paragraph, width)]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text to a width; a longer word gets its own line."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def print_help() -> None:
    """Print the help, formatted for the terminal or pipe on standard output."""
    # The variable COLUMNS has priority, because not every terminal reports its width.
    usual = _TERMINAL_WIDTH if sys.stdout.isatty() else _PIPE_WIDTH
    width = shutil.get_terminal_size((usual, 0)).columns
    colored = sys.stdout.isatty() and _may_use_color()
    sys.stdout.write(f"{help_page(min(max(width, _WIDTH_MIN), _WIDTH_MAX), colored=colored)}\n")


def _may_use_color() -> bool:
    # Imported only for a terminal, since loading it takes time.
    from kingdom.settings import read_environment

    return not read_environment("NO_COLOR") and read_environment("TERM") != "dumb"
