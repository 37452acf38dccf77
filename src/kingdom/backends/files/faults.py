"""What the operating system says, in the words of the port."""

from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Misconfigured, Unavailable


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
        raise Unavailable(f"the disk does not do its part ({error}): is it full, or gone?") from error
