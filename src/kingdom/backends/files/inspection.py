"""Looking at a store of files without using it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec

from kingdom.backends.files.journal.entry import Lease
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.system.processes import has_ended, holders_of
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES, Layout

# Whoever writes holds the store for milliseconds.
PATIENCE_SECONDS = 2.0
_NAP_SECONDS = 0.05
# So many files of events are tried: enough to notice a wrong owner or a failing disk.
_EVENTS_MOST = 10_000


@dataclass(frozen=True, slots=True)
class FilesLook:
    """Who holds a store for longer than a write takes, leases of processes that have ended, unreadable events.

    `holders` is None where nobody does, and empty where nobody can be seen to.
    """

    holders: list[int] | None
    # The stream of each, and the id of its process.
    orphans: list[tuple[str, str]]
    # Files of open events, and what the system says of them.
    unreadable: list[tuple[str, str]]


def look_at_store(directory: Path) -> FilesLook:
    """Look at the store of a directory, which need not be there."""
    layout = Layout(str(directory))
    return FilesLook(
        holders=_holders(layout.lock),
        orphans=list(_orphans(Path(layout.leases))),
        unreadable=list(_unreadable(Path(layout.streams))),
    )


def _holders(path: str) -> list[int] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_free(descriptor):
            if time.monotonic() > deadline:
                return holders_of(os.fstat(descriptor))
            time.sleep(_NAP_SECONDS)
        return None
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _orphans(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob("*.json")):
        # It may end while we look, and what cannot be read the store itself tells of.
        with suppress(OSError, msgspec.DecodeError):
            lease = msgspec.json.decode(read_file(str(file)), type=Lease)
            if has_ended(lease.process):
                yield lease.stream, lease.process.partition(":")[0]


def _unreadable(streams: Path) -> Iterator[tuple[str, str]]:
    files = chain.from_iterable(streams.glob(f"*/{status}/*.json") for status in STATUS_DIRECTORIES.values())
    for file in islice(files, _EVENTS_MOST):
        try:
            read_file(str(file))
        except FileNotFoundError:
            # It was handled meanwhile.
            continue
        except OSError as error:
            yield str(file), os.strerror(error.errno or 0)
