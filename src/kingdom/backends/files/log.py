"""The log: `logs/events.log` and the files it was split into, one sequence read by cursor."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kingdom.backends.files.bodies import careful
from kingdom.backends.files.entry import LogPart
from kingdom.backends.files.layout import Layout
from kingdom.backends.files.lines import first_number, lines_from
from kingdom.bus.log import Cursor, LogEntry, LoggedEntry

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


def read_log(layout: Layout, after: Cursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
    """Return entries behind the cursor, only those about one aggregate if its id is given."""
    found: list[LoggedEntry] = []
    named = _encode(about) if about is not None else b""
    for path in _files_from(layout, after.epoch):
        for line in lines_from(path, after.epoch):
            # Looking for the name is much cheaper than reading the line.
            if named not in line:
                continue
            try:
                read = _read(line)
            except msgspec.MsgspecError:
                # A person has spoilt it, or it never was ours.
                continue
            cursor = Cursor(read.n, read.seq)
            if cursor > after and about in (None, read.aggregate_id):
                found.append(LoggedEntry(cursor, _entry(read)))
                if len(found) >= limit:
                    return found
    return found


def _files_from(layout: Layout, number: int) -> list[str]:
    """Return the files that can hold entries from this number on, oldest first."""
    starts = ((first_number(path), path) for path in (*layout.kept_logs(), layout.log))
    files = sorted((start, path) for start, path in starts if start is not None)
    # A file is passed over where the next one begins before the number we look for.
    skip = sum(1 for start, _ in files[1:] if start < number)
    return [path for _, path in files[skip:]]


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
