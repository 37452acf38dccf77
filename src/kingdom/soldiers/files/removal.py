"""Remove a folder that an agent wrote to, even if it is deep, forbids access, or the agent is still running."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from kingdom.soldiers.files.agent_files import entries_in, open_folder_in

# The removal is retried, because a running agent may add to a folder that was just emptied.
_TRIES = 10


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, without following links; raises OSError if that is impossible."""
    parent = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for tries_left in reversed(range(_TRIES)):
            with _open_writable(parent, folder.name) as top:
                obstacle = _empty_folder(top)
            try:
                return os.rmdir(folder.name, dir_fd=parent)
            except OSError as error:
                if not tries_left:
                    raise obstacle or error from error
    finally:
        os.close(parent)


def _empty_folder(top: int) -> OSError | None:
    """Remove everything in a folder; return the last error, if any."""
    obstacle: OSError | None = None
    # Folders are moved up before they are emptied, so few are open at a time and nothing recurses deeply.
    waiting = [*_lift_folders(top, top)]
    while waiting:
        name = waiting.pop()
        try:
            with _open_writable(top, name) as folder:
                waiting += _lift_folders(folder, top)
            os.rmdir(name, dir_fd=top)
        except FileNotFoundError:
            continue
        except OSError as error:
            obstacle = error
            # The agent may have replaced the folder with a link.
            with suppress(OSError):
                os.unlink(name, dir_fd=top)
    return obstacle


def _lift_folders(folder: int, top: int) -> Iterator[str]:
    """Remove the files of a folder and move its subfolders up into `top`; yield the new names of the subfolders."""
    found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries_in(folder)]
    for name, is_folder in found:
        # If an entry has changed its kind meanwhile, it stays, and the next try finds it.
        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif folder == top:
                yield name
            else:
                new_name = f".removed-{token_hex(8)}"
                # Moving a folder rewrites its `..` entry, which needs write permission on it.
                with _open_writable(folder, name):
                    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)
                yield new_name


@contextmanager
def _open_writable(parent: int, name: str) -> Iterator[int]:
    """Open a folder within an open folder and grant its owner all permissions; raises OSError for a link."""
    descriptor = open_folder_in(parent, name)
    try:
        # Use the descriptor, because something else may have the name of the folder by now.
        Path(f"/proc/self/fd/{descriptor}").chmod(0o700)
        yield descriptor
    finally:
        os.close(descriptor)
