"""Transcripts: files of JSON lines that only grow, and that readers follow by byte offset."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

Entry = dict[str, Any]

# Whatever may come of decoding what somebody else wrote.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_PAGE_BYTES = 1 << 20

_decode = msgspec.json.Decoder(Entry).decode


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in their order, and the offset at which the next ones will stand."""

    entries: list[Entry]
    next_offset: int


def append_entry(path: Path, entry: Mapping[str, Any], *, durable: bool = True) -> None:
    """Append a line; a `durable` one is on the disk when this returns."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # The torn line of a writer that was killed must not swallow this one.
        start = b"" if _ends_with_a_line(file) else b"\n"
        _write(file, start + msgspec.json.encode(entry) + b"\n")
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def read_page(path: Path, offset: int = 0, *, at_most: int = _PAGE_BYTES) -> Page:
    """Return about `at_most` bytes of entries from an offset on.

    A last line without its end is left for later; a line that no entry can be read from is passed over.
    """
    entries: list[Entry] = []
    position = offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            position += len(line)
            if (entry := _entry_or_none(line)) is not None:
                entries.append(entry)
            if position - offset >= at_most:
                break
    return Page(entries, position)


def read_entries(path: Path) -> list[Entry]:
    """Return every entry of a transcript."""
    return read_page(path, at_most=path.stat().st_size + 1).entries


def _entry_or_none(line: bytes) -> Entry | None:
    try:
        return _decode(line)
    except UNREADABLE:
        return None


def _ends_with_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
