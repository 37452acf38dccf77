"""The log: `logs/events.log` and its rotated files. Readers see them as one sequence."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from kingdom.backends.files.journal.entry import LogLines
from kingdom.backends.files.tree.file_formats import safe_decoder
from kingdom.backends.files.tree.json_lines import first_number, lines_from
from kingdom.backends.files.tree.layout import StoreLayout
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry

# The documented size at which the log is rotated, even if the day is not over.
LOG_BYTES = 100 << 20
_encode = msgspec.json.Encoder().encode


class _LogLine(msgspec.Struct, omit_defaults=True):
    ts: datetime
    type: str
    actor: str
    data: dict[str, Any]
    trace_id: str
    seq: int
    n: int
    aggregate_type: str = ""
    aggregate_id: str = ""


_read = safe_decoder(msgspec.json.Decoder(_LogLine))


def build_log_lines(
    layout: StoreLayout, entries: Sequence[LogEntry], *, first: int, offset: int, now: float
) -> LogLines:
    """Return entries as lines numbered from `first`. If the current log must be rotated, include its new name."""
    lines = [
        msgspec.Raw(
            _encode(
                _LogLine(
                    ts=entry.at,
                    type=entry.type,
                    actor=entry.actor,
                    data=entry.data,  # type: ignore[arg-type] # any mapping is encoded alike
                    trace_id=entry.trace_id,
                    seq=first + number,
                    n=offset,
                    aggregate_type=entry.aggregate_type,
                    aggregate_id=entry.aggregate_id,
                )
            )
        )
        for number, entry in enumerate(entries)
    ]
    return LogLines(first, lines, _rotated_name(layout, now))


def read_log(
    layout: StoreLayout,
    after: LogCursor,
    limit: int,
    about: str | None = None,
    *,
    release: Callable[[], None] | None = None,
) -> list[LoggedEntry]:
    """Return entries after the cursor. If `about` is given, return only the entries of this aggregate id.

    `release` is called once the files are open, to release the lock, because reading may take long.
    """
    found: list[LoggedEntry] = []
    containing = _encode(about) if about is not None else b""
    with ExitStack() as opened:
        files = _open_from(layout, after.epoch, opened)
        if release:
            release()
        for line in chain.from_iterable(lines_from(file, after.epoch, containing) for file in files):
            try:
                read = _read(line)
            except msgspec.MsgspecError:
                # The line is damaged, or another program wrote it.
                continue
            cursor = LogCursor(read.n, read.seq)
            if cursor > after and about in (None, read.aggregate_id):
                found.append(LoggedEntry(cursor, _entry(read)))
                if len(found) >= limit:
                    return found
    return found


def _open_from(layout: StoreLayout, number: int, opened: ExitStack) -> list[BinaryIO]:
    """Open the files that can contain entries with at least this number, oldest first."""
    starts = ((first_number(path), path) for path in (*layout.rotated_logs(), layout.log))
    files = sorted((start, path) for start, path in starts if start is not None)
    # Skip a file if the next file begins before this number.
    skip = sum(1 for start, _ in files[1:] if start < number)
    found: list[BinaryIO] = []
    for _, path in files[skip:]:
        # Retention may remove the file at any time.
        with suppress(FileNotFoundError):
            found.append(opened.enter_context(open(path, "rb")))  # noqa: SIM115 - the stack closes it
    return found


def _rotated_name(layout: StoreLayout, now: float) -> str | None:
    """Return the new name of the current log if it must be rotated, else None."""
    try:
        status = os.stat(layout.log)
    except FileNotFoundError:
        return None
    written, today = datetime.fromtimestamp(status.st_mtime, UTC).date(), datetime.fromtimestamp(now, UTC).date()
    if not status.st_size or (written == today and status.st_size < LOG_BYTES):
        return None
    part = 0
    while os.path.exists(path := layout.rotated_log(written, part)):
        part += 1
    return os.path.basename(path)


def _entry(read: _LogLine) -> LogEntry:
    return LogEntry(
        type=read.type,
        actor=read.actor,
        data=read.data,
        at=read.ts,
        trace_id=read.trace_id,
        aggregate_type=read.aggregate_type,
        aggregate_id=read.aggregate_id,
    )
