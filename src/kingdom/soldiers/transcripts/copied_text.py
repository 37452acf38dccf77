"""Turn the lines of a transcript or diff into the pieces that are copied to the store."""

import os
import stat
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from kingdom.soldiers.agents.transcript import try_decode_entry
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.storage.run_texts import TextPiece

PIECE_BYTES = 64 << 10
# More than the longest secret, so a secret that begins before a cut is complete when it is searched.
MARGIN_BYTES = 64 << 10
_NOTHING = b" "


def read_lines(path: Path, offset: int, *, at_most: int, line_max: int) -> bytes:
    """Return about `at_most` bytes of whole lines from an offset on; nothing if there is no whole line.

    Of a line with more than `line_max` bytes only the beginning is returned.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        file.seek(offset)
        data = file.read(at_most)
        while b"\n" not in data and len(data) < line_max and (more := file.read(at_most)):
            data += more
    end = data.rfind(b"\n") + 1
    return data[: end or (len(data) if len(data) >= line_max else 0)]


def redact_lines(data: bytes, redaction: Redaction) -> bytes:
    """Return the lines of a transcript without secrets. Every line keeps its length, so offsets stay valid."""
    return b"".join(_redact_line(line, redaction) for line in BytesIO(data))


def cut_into_pieces(data: bytes, offset: int, room: int) -> Iterator[TextPiece]:
    """Yield the first `room` bytes of a text that begins at an offset, in pieces.

    If they fill the room, the last piece is marked as cut.
    """
    kept = data[:room]
    for start in range(0, len(kept), PIECE_BYTES):
        content = kept[start : start + PIECE_BYTES]
        is_cut = len(data) >= room and start + len(content) == len(kept)
        yield TextPiece(start=offset + start, content=content, is_cut=is_cut)


def _redact_line(line: bytes, redaction: Redaction) -> bytes:
    # Bytes that are not UTF-8, such as those of a torn line, must keep their number too.
    text = line.decode(errors="surrogateescape")
    parts: list[bytes] = []
    end = 0
    for start, stop in redaction.spans(text):
        length = len(_encode(text[start:stop]))
        parts += (_encode(text[end:start]), REDACTED.encode()[:length].ljust(length))
        end = stop
    if not parts:
        return line
    redacted = b"".join((*parts, _encode(text[end:])))
    if try_decode_entry(redacted) is None:
        # The secret included a part of the JSON syntax. A blank line is skipped by readers.
        return _NOTHING * (len(line) - 1) + line[-1:]
    return redacted


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
