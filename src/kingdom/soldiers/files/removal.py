"""Removing a folder that an agent wrote to: however deep it is, whatever it forbids, and while the agent is at work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from kingdom.soldiers.files.agent_files import entries_in, open_folder_in

# An agent that is at work may add to a folder that had just been emptied.
_TRIES = 10


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; what its links lead to stays. Raises OSError where that is impossible."""
    above = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for left in reversed(range(_TRIES)):
            with _opened(above, folder.name) as top:
                obstacle = _empty_folder(top)
            try:
                return os.rmdir(folder.name, dir_fd=above)
            except OSError as error:
                if not left:
                    raise obstacle or error from error
    finally:
        os.close(above)


def _empty_folder(top: int) -> OSError | None:
    """Remove all that is in a folder; return what was in the way of that, if anything was."""
    obstacle: OSError | None = None
    # Folders are moved up before they are emptied, so that few are open at a time and no call goes deep.
    waiting = [*_lift_folders(top, top)]
    while waiting:
        name = waiting.pop()
        try:
            with _opened(top, name) as place:
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
    """Remove the files of a folder and move its folders up; yield their names there."""
    found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries_in(place)]
    for name, is_folder in found:
        # What is not any more what it was is met again, since its folder is not empty then.
        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            if not is_folder:
                os.unlink(name, dir_fd=place)
            elif place == top:
                yield name
            else:
                above = f".removed-{token_hex(8)}"
                # Whoever moves a folder changes what stands in it for the one above.
                with _opened(place, name):
                    os.rename(name, above, src_dir_fd=place, dst_dir_fd=top)
                yield above


@contextmanager
def _opened(above: int, name: str) -> Iterator[int]:
    """Open a folder in an open folder, and permit everything in it; a link is none."""
    descriptor = open_folder_in(above, name)
    try:
        # By its descriptor: the name may mean something else by now.
        Path(f"/proc/self/fd/{descriptor}").chmod(0o700)
        yield descriptor
    finally:
        os.close(descriptor)
