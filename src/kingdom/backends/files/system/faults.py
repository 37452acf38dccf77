"""Turn errors of the operating system into errors of the bus."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Misconfigured, Unavailable


def suggest_remedy(error: OSError) -> str:
    """Return what a person can do about a disk error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, then try again"
    return "check the disk for errors (dmesg | tail), then try again"


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Misconfigured for errors that a person must fix, and Unavailable for the others."""
    try:
        yield
    except PermissionError as error:
        raise Misconfigured(
            f"{error.filename} is not accessible ({error.strerror}): check its owner, and the user of this process"
        ) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise Misconfigured(f"{error.filename} exists and is not a directory: choose another path") from error
    except OSError as error:
        raise Unavailable(f"the disk operation failed ({error}): {suggest_remedy(error)}") from error
