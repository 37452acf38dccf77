"""Reads the index in memory (the books) from the files of a store; the caller holds the lock."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from kingdom.backends.files.index.event_index import Books
from kingdom.backends.files.journal.entry import Pause, Row
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.json_lines import last_line
from kingdom.backends.files.tree.layout import Layout
from kingdom.backends.files.tree.tree import Tree

_pause = msgspec.json.Decoder(Pause).decode


class _LogLine(msgspec.Struct):
    seq: int


def empty_books(tree: Tree) -> Books:
    """Return books that know nothing, and read a stream when it is first asked for."""

    def load(stream: str) -> Iterator[Row]:
        leases = books.leases.values()
        by_position = {p: lease for lease in leases if lease.stream == stream for p in lease.positions}
        return tree.scan_events(stream, by_position)

    books = Books(load, time.time())
    return books


def read_books(tree: Tree) -> Books:
    """Return books that know the leases, the pauses and the end of the log."""
    books, layout = empty_books(tree), tree.layout
    for token in lease_tokens(layout):
        if (lease := tree.read_lease(token)) is not None:
            books.hold(lease)
        else:
            tree.disk.unlink(layout.lease(token))
    for name in os.listdir(layout.pauses):
        # An editor's own files begin with a dot.
        if not name.endswith(".json") or name.startswith("."):
            continue
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            pause = _pause(read_file(f"{layout.pauses}/{name}"))
            books.pauses[pause.stream] = pause
    books.log_sequence = _last_log_sequence(layout)
    return books


def lease_tokens(layout: Layout) -> list[int]:
    """Return the tokens of all leases that have a file, in order."""
    tokens = [name.removesuffix(".json") for name in os.listdir(layout.leases)]
    return sorted(int(token) for token in tokens if token.isascii() and token.isdecimal())


def _last_log_sequence(layout: Layout) -> int:
    kept = sorted(layout.kept_logs(), key=os.path.getmtime, reverse=True)
    for path in (layout.log, *kept):
        if line := last_line(path):
            # A line that is not ours tells no number; numbers go by the journal, so none comes twice.
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line, type=_LogLine).seq
    return 0
