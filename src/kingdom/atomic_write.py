"""Write files atomically."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kingdom.errors import ProgramFailed


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that readers see all of it or nothing. A link in place of the file or its folder is not followed.

    Raises ProgramFailed if the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_atomically_in(folder, file.name, text)
        finally:
            os.close(folder)
    except OSError as error:
        raise ProgramFailed(
            f"{file} could not be written: {error}; check that its folder is not a link and that the disk has space"
        ) from error


def write_atomically_in(folder: int, name: str, text: str) -> None:
    """Write a file atomically in an open folder. Raises OSError."""
    # The name cannot be guessed, so no one can place a link there first.
    draft = f".draft-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
