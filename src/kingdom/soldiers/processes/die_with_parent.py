"""Start a program that the kernel kills when its parent dies, although it has no pid namespace of its own.

Run as a file: `python -I -S die_with_parent.py PARENT LOCALE ARGV…`. An empty LOCALE means that the environment has no
LC_CTYPE: Python sets one at its start, and the program must not see it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replace this process with the program, unless the parent has died."""
    parent, locale, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this has died")
    if not locale:
        os.unsetenv("LC_CTYPE")
    # Python ignores SIGPIPE, and without this line the program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - starting the given program is the purpose
    except OSError as error:
        sys.exit(f"{argv[0]}: {error}")


if __name__ == "__main__":
    main()
