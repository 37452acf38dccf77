"""Append-only files of numbered JSON lines: the log and the archive."""

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
    """Yield the complete lines with at least this number that contain a text. Numbers never decrease."""
    file.seek(_first_with(file, number))
    for line in file:
        if not line.endswith(b"\n"):
            # The line is still being written.
            return
        # Searching for the text is much cheaper than decoding. Damaged lines are skipped.
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


def size_below(path: str, number: int, *, thorough: bool) -> int:
    """Return the size of a file up to its last complete line below a number. `thorough` reads every line."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; only a missing file is accepted
    except FileNotFoundError:
        return 0
    with file:
        size = offset = 0 if thorough else _first_with(file, number)
        file.seek(offset)
        for line in file:
            offset += len(line)
            # A damaged line stays if good lines follow.
            if (found := _number_or_none(line)) is not None and found < number:
                size = offset
        return size


def _first_with(file: BinaryIO, number: int) -> int:
    """Return an offset at or shortly before the first line with at least this number, by binary search."""
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
