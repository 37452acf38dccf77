"""What stands between Kingdom and a program that is not contained: it makes sure of dying with its parent first.

Run as a file: `python -I -S become.py PARENT LOCALE ARGV…`. An empty LOCALE tells that no LC_CTYPE was given: Python
sets one, but the program shall see only what it was given.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program, unless the parent has died."""
    parent, locale, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this has died")
    if not locale:
        os.unsetenv("LC_CTYPE")
    # Python ignores it, and programs would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the program is what this is for
    except OSError as error:
        sys.exit(f"{argv[0]}: {error}")


if __name__ == "__main__":
    main()
