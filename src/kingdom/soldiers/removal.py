"""Removing a folder that an agent wrote to: however deep it is, and whatever it forbids."""

import os
from itertools import count
from pathlib import Path
from secrets import token_hex


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; what its links lead to stays. Raises OSError where that is impossible."""
    # Folders are moved up before they are emptied, so that no path becomes too long and no call too deep.
    names = (folder / f".removed-{token_hex(8)}-{number}" for number in count())
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        place.chmod(0o700)
        for entry in _entries(place):
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                # Who moves a folder changes what stands in it for the one above.
                path.chmod(0o700)
                waiting.append(path.rename(next(names)))
            else:
                path.unlink()
        if place != folder:
            place.rmdir()
    folder.rmdir()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return list(found)
