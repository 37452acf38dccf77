"""What stands between Kingdom and a program it starts: it makes sure of dying with its parent, then becomes it.

Run as a file: `python -I -S become.py PARENT LOCALE ARGV…`, with an empty PARENT inside a namespace. There the parent
arranges the dying from outside and says when that is done; if it is dead, no word ever comes. An empty LOCALE tells
that no LC_CTYPE was given: Python sets one, but the program shall see only what it was given.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program, unless the parent has died."""
    parent, locale, *argv = sys.argv[1:]
    if not (_parent_lives(int(parent)) if parent else _told_to_begin()):
        sys.exit("the process that started this has died")
    if not locale:
        os.unsetenv("LC_CTYPE")
    # Python ignores it, and programs would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the program is what this is for
    except OSError as error:
        sys.exit(f"{argv[0]}: {error}")


def _parent_lives(parent: int) -> bool:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _told_to_begin() -> bool:
    os.write(1, b"\n")
    return os.read(0, 1) == b"\n"


if __name__ == "__main__":
    main()
