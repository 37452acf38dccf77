"""Remove a folder that an agent wrote to, even if it is deep, forbids access, or the agent is still running."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from kingdom.soldiers.files.agent_files import entries_in, open_folder_in

# A running agent may add to a folder that was just emptied.
_TRIES = 10


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, without following links; raises OSError if that is impossible."""
    above = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for left in reversed(range(_TRIES)):
            with _open_writable(above, folder.name) as top:
                obstacle = _empty_folder(top)
            try:
                return os.rmdir(folder.name, dir_fd=above)
            except OSError as error:
                if not left:
                    raise obstacle or error from error
    finally:
        os.close(above)


def _empty_folder(top: int) -> OSError | None:
    """Remove everything in a folder; return the last error, if any."""
    obstacle: OSError | None = None
    # Folders are moved up before they are emptied, so few are open at a time and nothing recurses deeply.
    waiting = [*_lift_folders(top, top)]
    while waiting:
        name = waiting.pop()
        try:
            with _open_writable(top, name) as place:
                waiting += _lift_folders(place, top)
            os.rmdir(name, dir_fd=top)
        except FileNotFoundError:
            continue
        except OSError as error:
            obstacle = error
            # It may be a link by now.
            with suppress(OSError):
                os.unlink(name, dir_fd=top)
    return obstacle


def _lift_folders(place: int, top: int) -> Iterator[str]:
    """Remove the files of a folder and move its folders up into `top`; yield their new names."""
    found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries_in(place)]
    for name, is_folder in found:
        # An entry that changed its kind meanwhile keeps its folder from being empty, so the next try finds it.
        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            if not is_folder:
                os.unlink(name, dir_fd=place)
            elif place == top:
                yield name
            else:
                above = f".removed-{token_hex(8)}"
                # Moving a folder rewrites its `..` entry, which needs write permission on it.
                with _open_writable(place, name):
                    os.rename(name, above, src_dir_fd=place, dst_dir_fd=top)
                yield above


@contextmanager
def _open_writable(above: int, name: str) -> Iterator[int]:
    """Open a folder within an open folder and grant all permissions on it; fails for a link."""
    descriptor = open_folder_in(above, name)
    try:
        # By descriptor, because the name may mean something else by now.
        Path(f"/proc/self/fd/{descriptor}").chmod(0o700)
        yield descriptor
    finally:
        os.close(descriptor)
