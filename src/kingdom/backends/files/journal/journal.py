"""The journal: the commit point of every transaction, and what is replayed after a crash.

Segments are append-only text. A line is one entry: checksum, place, content. The place of an entry, counted in bytes
since the beginning of time, is its number; lease tokens and positions are made of it, so nothing else needs a counter.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import structlog

from kingdom.backends.files.journal.entry import Entry
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.faults import remedy
from kingdom.errors import Permanent, Unavailable

_SUFFIX = ".jsonl"
_SEGMENT = re.compile(r"[0-9]{16,}\.jsonl")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)
_log = structlog.get_logger(__name__)


class Behind(Exception):
    """This process has slept so long that what it should read is gone: it must look at the files instead."""


class Journal:
    """The newest segment, open for appending; what this process has read of it ends at `end`."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._descriptor = -1
        self.start = 0
        self.end = 0
        # Up to where this segment counts where its file is not to be trusted any more; else 0.
        self.doubtful = 0

    @property
    def size(self) -> int:
        """Return how much of the newest segment this process knows."""
        return self.end - self.start

    def segments(self) -> list[int]:
        """Return where each segment starts, oldest first."""
        # Beside them lie torn ends, and whatever a person or an editor has left there.
        names = filter(_SEGMENT.fullmatch, os.listdir(self._directory))
        return sorted(int(name.removesuffix(_SUFFIX)) for name in names)

    def open(self, start: int) -> None:
        """Turn to the segment that starts here; it is made where it is missing."""
        descriptor = self._disk.open_for_appending(self._path(start))
        try:
            # Also for a file that is there: the process that made it may have died before its name was synced.
            self._disk.sync_directory(self._directory)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self.start, self.end = descriptor, start, start

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def reopen(self) -> None:
        """Turn to the file that has the name of this segment now."""
        try:
            descriptor = os.open(self._path(self.start), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Unavailable(
                f"{self._path(self.start)} was removed while it was in use: stop everything here and start it again"
            ) from None
        self.close()
        self._descriptor = descriptor

    def written(self) -> int | None:
        """Return where the newest segment ends on disk; None where its file is another one now."""
        status = os.fstat(self._descriptor)
        return self.start + status.st_size if status.st_nlink else None

    def append(self, entry: Entry, *, durable: bool) -> None:
        """Write an entry at the end; if `durable`, return when it will survive a loss of power."""
        content = _encoder.encode(entry)
        line = b"%08x %d %b\n" % (zlib.crc32(content), self.end, content)
        _refuse_beyond(entry, self.end + len(line))
        try:
            self._disk.write(self._descriptor, line)
            if durable:
                self.sync()
        except OSError as error:
            # Whatever is there of it must never be taken for a commit. If it cannot be cut off now, the next holder
            # does that: it is torn, or it is whole and could not be synced.
            with suppress(OSError):
                self._disk.truncate(self._path(self.start), self.end - self.start)
            raise Unavailable(f"the journal cannot be written ({error.strerror}): {remedy(error)}") from error
        self.end += len(line)

    def sync(self) -> None:
        """Return when everything in the newest segment will survive a loss of power."""
        try:
            self._disk.sync_file(self._descriptor)
        except OSError:
            # The system may have dropped what it could not write, and would say nothing of it at the next sync.
            self.doubtful = self.end
            raise

    def write_anew(self, end: int) -> None:
        """Put a new, synced file in the place of this segment with all that counts of it, up to `end`."""
        content, place = self._read(0)[: end - self.start], self.start
        for line in content.splitlines(keepends=True):
            if _decode(line, place) is None:
                raise self._damaged(place)
            place += len(line)
        new = f"{self._path(self.start)}.new"
        self._disk.create(new, content)
        descriptor = self._disk.open_for_appending(new)
        try:
            self._disk.sync_file(descriptor)
            self._disk.rename(new, self._path(self.start))
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor
        self._disk.sync_directory(self._directory)

    def follow(self, to: int) -> Iterator[tuple[int, Entry]]:
        """Yield the entries between what this process knows and `to`, all of which are whole.

        Raises Behind where a segment that this process has not read is gone already.
        """
        while self.end < to:
            place = self.end
            for line in self._read(place - self.start).splitlines(keepends=True):
                if place >= to:
                    break
                entry = _decode(line, place)
                if entry is None:
                    raise self._damaged(place)
                yield place, entry
                place += len(line)
            self.end = place
            if self.end < to:
                self._go_on(self.end)

    def _go_on(self, start: int) -> None:
        """Turn to a segment that must be there: made anew by us it would be empty for ever."""
        try:
            descriptor = os.open(self._path(start), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Behind from None
        self.close()
        self._descriptor, self.start, self.end = descriptor, start, start

    def recover(self, start: int, after: int) -> Iterator[tuple[int, Entry]]:
        """Yield every whole entry behind `after` of the segment that starts here; a torn tail is cut off."""
        if start != self.start or self._descriptor < 0:
            self.open(start)
        place = max(after, start)
        segment = self._read(place - start)
        known = place
        for line in segment.splitlines(keepends=True):
            entry = _decode(line, place)
            if entry is None:
                break
            yield place, entry
            place += len(line)
        if torn := segment[place - known :]:
            # Only the newest is ever written to, and it was synced before the next one began.
            if start != self.segments()[-1] or _synced_in(torn, place) > place:
                raise self._damaged(place)
            self._disk.create(f"{self._directory}/torn-{place}{_SUFFIX}", torn)
            self._disk.truncate(self._path(start), place - start)
            _log.warning("the end of the journal was never finished and is cut off", bytes=len(torn), place=place)
        self.end = place

    def forget_before(self, start: int) -> None:
        """Remove the segments before this one: everything in them is on disk for good."""
        for segment in self.segments():
            if segment < start:
                self._disk.unlink(self._path(segment))

    def _read(self, offset: int) -> bytes:
        # By descriptor: somebody may have removed the segment since. One call need not return all of it.
        parts = []
        while part := os.pread(self._descriptor, os.fstat(self._descriptor).st_size - offset, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _damaged(self, place: int) -> Unavailable:
        path, size = self._path(self.start), place - self.start
        return Unavailable(
            f"the journal is damaged at byte {size} of {path}, and was whole there once: bring the file back from a"
            f" backup. To go on without this entry and all behind it: truncate -s {size} {path}"
        )

    def _path(self, start: int) -> str:
        return f"{self._directory}/{start:016d}{_SUFFIX}"


def _refuse_beyond(entry: Entry, end: int) -> None:
    """Refuse a position that a later entry would give again."""
    last = max((row.position for row in entry.rows), default=0)
    if last >= end:
        raise Permanent(f"an event at {last} lies beyond its journal entry, which ends at {end}: please report this")


def _synced_in(torn: bytes, place: int) -> int:
    """Return up to where the journal was synced for sure, as the whole lines behind a damaged one tell."""
    synced = 0
    for line in torn.splitlines(keepends=True):
        entry = _decode(line, place)
        place += len(line)
        if entry is not None:
            synced = max(synced, entry.synced)
    return synced


def _decode(line: bytes, place: int) -> Entry | None:
    """Return the entry of a line, or None where the line is not whole or does not belong here."""
    checksum, _, rest = line.partition(b" ")
    number, _, content = rest.partition(b" ")
    if not content.endswith(b"\n") or number != b"%d" % place:
        return None
    content = content[:-1]
    if checksum != b"%08x" % zlib.crc32(content):
        return None
    return _decoder.decode(content)
