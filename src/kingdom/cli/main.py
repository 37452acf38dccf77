"""The command `kingdom`: it loads only the modules that the requested command needs."""

import gc
import os
import sys
from io import TextIOWrapper

from kingdom.cli.nouns import WORDS, expand_alias

# The scripts that `kingdom completion` prints call `kingdom --complete`.
_COMPLETE = "--complete"
_HELP = ("--help", "-h", "help")
# The usual exit code after Ctrl-C: 128 plus the number of SIGINT.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    # Loading modules creates no garbage, and garbage collection would take a tenth of a short command's time.
    gc.disable()
    # Files of this process and its children are readable by this account only.
    os.umask(0o077)
    words = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a replacement.
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
        # The reader is gone: discard the rest, so that flushing at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
