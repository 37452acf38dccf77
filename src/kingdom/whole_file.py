"""Writing a file so that nobody ever sees half of it."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kingdom.errors import ProgramFailed


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all; neither it nor its folder is followed where it is a link.

    Raises ProgramFailed where that cannot be done.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_into(folder, file.name, text)
        finally:
            os.close(folder)
    except OSError as error:
        raise ProgramFailed(
            f"{file} could not be written: {error}; look whether its folder is a real one and the disk has room"
        ) from error


def write_into(folder: int, name: str, text: str) -> None:
    """Do the same in an open folder; raises OSError."""
    # Nobody can guess the name, and so put a link there.
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
