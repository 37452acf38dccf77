"""Load the event index from the files of a store. The caller holds the lock."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from kingdom.backends.files.index.event_index import EventIndex
from kingdom.backends.files.journal.entry import EventRow, StreamPause
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.file_formats import safe_decoder
from kingdom.backends.files.tree.json_lines import last_line
from kingdom.backends.files.tree.layout import StoreLayout
from kingdom.backends.files.tree.tree import FileTree

_pause = safe_decoder(msgspec.json.Decoder(StreamPause))


class _LogNumber(msgspec.Struct):
    seq: int


def empty_event_index(tree: FileTree) -> EventIndex:
    """Return an empty index that loads a stream when it is first used."""

    def load(stream: str) -> Iterator[EventRow]:
        leases = index.leases.values()
        by_position = {p: lease for lease in leases if lease.stream == stream for p in lease.positions}
        return tree.scan_events(stream, by_position)

    index = EventIndex(load, time.time())
    return index


def load_events(tree: FileTree) -> EventIndex:
    """Return an index with the leases, the pauses and the end of the log."""
    index, layout = empty_event_index(tree), tree.layout
    for token in lease_tokens(layout):
        if (lease := tree.read_lease(token)) is not None:
            index.add_lease(lease)
        else:
            tree.disk.unlink(layout.lease(token))
    for name in os.listdir(layout.pauses):
        # Temporary files of editors begin with a dot.
        if not name.endswith(".json") or name.startswith("."):
            continue
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            pause = _pause(read_file(f"{layout.pauses}/{name}"))
            index.pauses[pause.stream] = pause
    index.log_sequence = _last_log_sequence(layout)
    return index


def lease_tokens(layout: StoreLayout) -> list[int]:
    """Return the tokens of all lease files in order."""
    tokens = [name.removesuffix(".json") for name in os.listdir(layout.leases)]
    return sorted(int(token) for token in tokens if token.isascii() and token.isdecimal())


def _last_log_sequence(layout: StoreLayout) -> int:
    kept = sorted(layout.rotated_logs(), key=os.path.getmtime, reverse=True)
    for path in (layout.log, *kept):
        if line := last_line(path):
            # If the line has no number, use an older file. Cursors stay unique: they also contain the journal offset.
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line, type=_LogNumber).seq
    return 0
