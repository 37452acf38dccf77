"""Inspect a store of files without opening it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec

from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.system.processes import has_ended, holders_of
from kingdom.backends.files.tree.file_formats import decode_lease
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES, StoreLayout

# How long to wait until the store is free. Writers normally hold it for milliseconds.
PATIENCE_SECONDS = 2.0
_SLEEP_SECONDS = 0.05
# The largest number of event files to read. This is enough to notice a wrong owner or a failing disk.
_EVENTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class StoreInspection:
    """Processes that hold the store for too long, leases of ended processes, and unreadable event files.

    `holders` is None if the store is free. It is empty if the store is held by a process that is not visible here.
    """

    holders: list[int] | None
    # The stream and the process id of each lease whose process has ended.
    orphans: list[tuple[str, str]]
    # The path of each unreadable event file, and the error of the operating system.
    unreadable: list[tuple[str, str]]


def inspect_store(directory: Path) -> StoreInspection:
    """Inspect the store in a directory. If there is no store, nothing is found."""
    layout = StoreLayout(str(directory))
    return StoreInspection(
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
            time.sleep(_SLEEP_SECONDS)
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
        # The lease may end meanwhile. The store itself reports unreadable lease files.
        with suppress(OSError, msgspec.DecodeError):
            lease = decode_lease(read_file(str(file)))
            if has_ended(lease.process):
                yield lease.stream, lease.process.partition(":")[0]


def _unreadable(streams: Path) -> Iterator[tuple[str, str]]:
    files = chain.from_iterable(streams.glob(f"*/{status}/*.json") for status in STATUS_DIRECTORIES.values())
    for file in islice(files, _EVENTS_MAX):
        try:
            read_file(str(file))
        except FileNotFoundError:
            # The event was handled meanwhile.
            continue
        except OSError as error:
            yield str(file), os.strerror(error.errno or 0)
