"""The command `kingdom`: answers what is asked most at once, and loads the noun that is asked for only then."""

import gc
import os
import sys
from io import TextIOWrapper

from kingdom.cli.nouns import WORDS, expand_alias

# What the shells ask, see `kingdom completion`.
_COMPLETE = "--complete"
_HELP = ("--help", "-h", "help")
_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error of ours ends in one sentence and an honest exit code."""
    # Loading makes nothing but what stays; looking through it for waste would take a tenth of a short command.
    gc.disable()
    # What is made here, and by every process that is started from here, is for this account alone.
    os.umask(0o077)
    words = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows another one.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    words, note = expand_alias(words)
    try:
        if not words or words[0] in _HELP:
            from kingdom.cli.help_page import print_help

            print_help()
        elif words[0] == "--version":
            from importlib.metadata import version

            sys.stdout.write(f"kingdom {version('kingdom')}\n")
        elif words[0] == _COMPLETE:
            from kingdom.cli.candidates import print_candidates

            print_candidates(words[1:])
        elif words[0] in WORDS:
            from kingdom.cli.dispatch import run

            sys.exit(run(words, note))
        else:
            from kingdom.cli.dispatch import refuse_word

            sys.exit(refuse_word(words[0]))
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Who reads has gone; what is left to write goes nowhere, so that nothing complains at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
