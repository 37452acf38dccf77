"""Append-only files of JSON lines: the log and the archive. The field `n` of a line is called its number here."""

import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from kingdom.backends.files.tree.file_formats import safe_decoder

_BLOCK = 1 << 16


class _NumberedLine(msgspec.Struct):
    n: int


_number = safe_decoder(msgspec.json.Decoder(_NumberedLine))


def lines_from(file: BinaryIO, number: int, containing: bytes) -> Iterator[bytes]:
    """Yield the complete lines that have at least this number and contain a text. Numbers never decrease in a file."""
    file.seek(_find_offset(file, number))
    for line in file:
        if not line.endswith(b"\n"):
            # The line is still being written.
            return
        # Searching for the text first is much faster than decoding every line. Damaged lines are skipped.
        if containing in line and (found := _number_or_none(line)) is not None and found >= number:
            yield line


def first_number(path: str) -> int | None:
    """Return the number of the first readable line, or None."""
    try:
        with open(path, "rb") as file:
            numbers = map(_number_or_none, file)
            return next((number for number in numbers if number is not None), None)
    except FileNotFoundError:
        return None


def last_line(path: str) -> bytes | None:
    """Return the last readable line, or None."""
    try:
        with open(path, "rb") as file:
            end, tail = file.seek(0, os.SEEK_END), b""
            while end > 0:
                start = max(0, end - _BLOCK)
                file.seek(start)
                tail, end = file.read(end - start) + tail, start
                for line in reversed(tail.splitlines(keepends=True)):
                    if _number_or_none(line) is not None:
                        return line
    except FileNotFoundError:
        pass
    return None


def size_of_lines_below(path: str, number: int, *, thorough: bool) -> int:
    """Return the size to which a file must be cut off, so that it ends with its last good line below this number.

    `thorough` reads every line instead of searching for the number.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; only a missing file is accepted
    except FileNotFoundError:
        return 0
    with file:
        size = offset = 0 if thorough else _find_offset(file, number)
        file.seek(offset)
        for line in file:
            offset += len(line)
            # A damaged line does not extend the size, but a later good line does.
            if (found := _number_or_none(line)) is not None and found < number:
                size = offset
        return size


def _find_offset(file: BinaryIO, number: int) -> int:
    """Return the offset of the first line with at least this number, or of a line shortly before it."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        start = file.tell()
        found = _number_or_none(file.readline()) if start < high else None
        if found is None or found >= number:
            high = middle
        else:
            low = start
    return low


def _number_or_none(line: bytes) -> int | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return _number(line).n
    except msgspec.MsgspecError:
        return None
