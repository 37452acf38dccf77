"""A process of an agent that keeps replacing a folder or file with a link, and back; imports nothing of Kingdom."""

import os
import sys
from contextlib import suppress
from itertools import count


def swap(name: str, outside: str) -> None:
    """Swap forever. If the host has removed the folder, create one with a file again."""
    is_folder = os.path.isdir(outside)  # noqa: PTH112 - a start without pathlib is faster
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number in count():
        real = f"{name}.{number}"
        with suppress(OSError):
            os.rename(name, real)  # noqa: PTH104 - as above
        with suppress(OSError):
            os.symlink(outside, name)  # noqa: PTH211 - as above
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - as above
        with suppress(OSError):
            os.rename(real, name)  # noqa: PTH104 - as above
        if is_folder:
            with suppress(OSError):
                os.mkdir(name)  # noqa: PTH102 - as above
                os.close(os.open(f"{name}/file", os.O_CREAT))


if __name__ == "__main__":
    swap(*sys.argv[1:])
