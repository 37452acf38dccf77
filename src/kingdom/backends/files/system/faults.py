"""What the operating system says, in the words of the port."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Misconfigured, Unavailable


def remedy(error: OSError) -> str:
    """Return what a person can do about an error of the disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, and try again"
    return "see whether the disk is sound (dmesg | tail), and try again"


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of the operating system into ours: what a person must mend, and what may pass."""
    try:
        yield
    except PermissionError as error:
        raise Misconfigured(
            f"{error.filename} may not be used ({error.strerror}): who owns it, and who runs this?"
        ) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise Misconfigured(f"{error.filename} cannot be a directory, something else is there: name another") from error
    except OSError as error:
        raise Unavailable(f"the disk does not do its part ({error}): {remedy(error)}") from error
