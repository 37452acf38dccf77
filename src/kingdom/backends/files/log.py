"""The log: `logs/events.log` and the files it was split into, one sequence read by cursor."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from kingdom.backends.files.bodies import careful
from kingdom.backends.files.entry import LogPart
from kingdom.backends.files.layout import Layout
from kingdom.backends.files.lines import first_number, lines_from
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry

# As the source document says; a day's file beyond it is kept in parts.
LOG_BYTES = 100 << 20
_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct, omit_defaults=True):
    ts: datetime
    type: str
    actor: str
    data: dict[str, Any]
    trace_id: str
    seq: int
    n: int
    aggregate_type: str = ""
    aggregate_id: str = ""


_read = careful(msgspec.json.Decoder(_Line))


def log_part(layout: Layout, entries: Sequence[LogEntry], *, first: int, place: int, now: float) -> LogPart:
    """Return entries as lines numbered from `first`, and how the file so far is kept if it is full."""
    lines = [
        msgspec.Raw(
            _encode(
                _Line(
                    ts=entry.at,
                    type=entry.type,
                    actor=entry.actor,
                    data=entry.data,  # type: ignore[arg-type]
                    trace_id=entry.trace_id,
                    seq=first + number,
                    n=place,
                    aggregate_type=entry.aggregate_type,
                    aggregate_id=entry.aggregate_id,
                )
            )
        )
        for number, entry in enumerate(entries)
    ]
    return LogPart(first, lines, _name_to_keep(layout, now))


def read_log(
    layout: Layout, after: LogCursor, limit: int, about: str | None = None, *, let_go: Callable[[], None] | None = None
) -> list[LoggedEntry]:
    """Return entries behind the cursor, only those about one aggregate if its id is given.

    Reading may take long, and files that are open only grow: before it the store is `let_go`.
    """
    found: list[LoggedEntry] = []
    named = _encode(about) if about is not None else b""
    with ExitStack() as opened:
        files = _open_from(layout, after.epoch, opened)
        if let_go:
            let_go()
        for line in chain.from_iterable(lines_from(file, after.epoch, named) for file in files):
            try:
                read = _read(line)
            except msgspec.MsgspecError:
                # A person has spoilt it, or it never was ours.
                continue
            cursor = LogCursor(read.n, read.seq)
            if cursor > after and about in (None, read.aggregate_id):
                found.append(LoggedEntry(cursor, _entry(read)))
                if len(found) >= limit:
                    return found
    return found


def _open_from(layout: Layout, number: int, opened: ExitStack) -> list[BinaryIO]:
    """Open the files that can hold entries from this number on; returns them oldest first."""
    starts = ((first_number(path), path) for path in (*layout.kept_logs(), layout.log))
    files = sorted((start, path) for start, path in starts if start is not None)
    # A file is passed over where the next one begins before the number we look for.
    skip = sum(1 for start, _ in files[1:] if start < number)
    found: list[BinaryIO] = []
    for _, path in files[skip:]:
        # It may be too old to be kept any longer.
        with suppress(FileNotFoundError):
            found.append(opened.enter_context(open(path, "rb")))  # noqa: SIM115 - the stack closes it
    return found


def _name_to_keep(layout: Layout, now: float) -> str | None:
    try:
        status = os.stat(layout.log)
    except FileNotFoundError:
        return None
    written, today = datetime.fromtimestamp(status.st_mtime, UTC).date(), datetime.fromtimestamp(now, UTC).date()
    if not status.st_size or (written == today and status.st_size < LOG_BYTES):
        return None
    part = 0
    while os.path.exists(path := layout.log_of(written, part)):
        part += 1
    return os.path.basename(path)


def _entry(read: _Line) -> LogEntry:
    return LogEntry(
        type=read.type,
        actor=read.actor,
        data=read.data,
        at=read.ts,
        trace_id=read.trace_id,
        aggregate_type=read.aggregate_type,
        aggregate_id=read.aggregate_id,
    )
