"""The journal: the commit point of every transaction, and the source of recovery after a crash.

Segments are append-only text files. Each line is one entry: its checksum, its offset and its content. Offsets count the
bytes of all segments since the store was created. A lease token is the offset of an entry, and an event position lies
between the offsets of its entry and of the next one, so tokens and positions need no counter of their own.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import structlog

from kingdom.backends.files.journal.entry import JournalEntry
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.faults import suggest_remedy
from kingdom.errors import Permanent, Unavailable

_SUFFIX = ".jsonl"
_SEGMENT = re.compile(r"[0-9]{16,}\.jsonl")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)
_log = structlog.get_logger(__name__)


class SegmentGone(Exception):
    """A segment was removed before this process had read it. The process must read the files instead."""


class Journal:
    """The newest segment, open for appending. It begins at offset `start`; this process has read it up to `end`."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._descriptor = -1
        self.start = 0
        self.end = 0
        # After a failed sync, the part of this segment before this offset must be copied to a new file. 0 means that no
        # copy is needed.
        self.rewrite_up_to = 0

    @property
    def size(self) -> int:
        """Return how many bytes of the newest segment this process has read."""
        return self.end - self.start

    def segments(self) -> list[int]:
        """Return the start offset of each segment, oldest first."""
        # The directory also contains incomplete entries that were cut off, and perhaps files of people or editors.
        names = filter(_SEGMENT.fullmatch, os.listdir(self._directory))
        return sorted(int(name.removesuffix(_SUFFIX)) for name in names)

    def open(self, start: int) -> None:
        """Open the segment that begins at `start`, creating it if needed."""
        descriptor = self._disk.open_for_appending(self._path(start))
        try:
            # An existing file needs the sync too, because its creator may have died before the sync.
            self._disk.sync_directory(self._directory)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self.start, self.end = descriptor, start, start

    def close(self) -> None:
        """Close the segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def reopen(self) -> None:
        """Open the file that has replaced the file of this segment."""
        try:
            descriptor = os.open(self._path(self.start), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Unavailable(
                f"{self._path(self.start)} was removed while in use: restart all processes of this store"
            ) from None
        self.close()
        self._descriptor = descriptor

    def end_on_disk(self) -> int | None:
        """Return the end offset of the newest segment on disk; None if another file has replaced it."""
        status = os.fstat(self._descriptor)
        return self.start + status.st_size if status.st_nlink else None

    def append(self, entry: JournalEntry, *, durable: bool) -> None:
        """Append an entry; if `durable`, wait until it survives a power loss."""
        content = _encoder.encode(entry)
        line = b"%08x %d %b\n" % (zlib.crc32(content), self.end, content)
        _refuse_positions_beyond(entry, self.end + len(line))
        try:
            self._disk.write(self._descriptor, line)
            if durable:
                self.sync()
        except OSError as error:
            # A partial entry must not count as a commit, so cut it off. If that fails, the next holder of the lock
            # cuts off an incomplete entry, and rewrites the segment after a failed sync.
            with suppress(OSError):
                self._disk.truncate(self._path(self.start), self.end - self.start)
            raise Unavailable(f"cannot write the journal ({error.strerror}): {suggest_remedy(error)}") from error
        self.end += len(line)

    def sync(self) -> None:
        """Wait until everything in the newest segment survives a power loss."""
        try:
            self._disk.sync_file(self._descriptor)
        except OSError:
            # The kernel may have dropped the data that it could not write. The next sync would not report this.
            self.rewrite_up_to = self.end
            raise

    def rewrite(self, end: int) -> None:
        """Replace the file of this segment by a synced copy of the content before offset `end`."""
        content, offset = self._read(0)[: end - self.start], self.start
        for line in content.splitlines(keepends=True):
            if _decode(line, offset) is None:
                raise self._damaged(offset)
            offset += len(line)
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

    def read_until(self, end: int) -> Iterator[tuple[int, JournalEntry]]:
        """Yield the unread entries before `end`. A damaged entry raises Unavailable.

        Raise SegmentGone if an unread segment was already removed.
        """
        while self.end < end:
            offset = self.end
            for line in self._read(offset - self.start).splitlines(keepends=True):
                if offset >= end:
                    break
                entry = _decode(line, offset)
                if entry is None:
                    raise self._damaged(offset)
                yield offset, entry
                offset += len(line)
            self.end = offset
            if self.end < end:
                self._open_next(self.end)

    def _open_next(self, start: int) -> None:
        """Open the segment that begins at `start`, which must exist. Creating it would hide that it was removed."""
        try:
            descriptor = os.open(self._path(start), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone from None
        self.close()
        self._descriptor, self.start, self.end = descriptor, start, start

    def recover(self, start: int, after: int) -> Iterator[tuple[int, JournalEntry]]:
        """Yield every complete entry from offset `after` of the segment at `start`, and cut off an incomplete end."""
        if start != self.start or self._descriptor < 0:
            self.open(start)
        offset = max(after, start)
        segment = self._read(offset - start)
        first = offset
        for line in segment.splitlines(keepends=True):
            entry = _decode(line, offset)
            if entry is None:
                break
            yield offset, entry
            offset += len(line)
        if torn := segment[offset - first :]:
            # Only the newest segment may be incomplete, because a segment is synced before the next one begins.
            if start != self.segments()[-1] or _find_synced_offset(torn, offset) > offset:
                raise self._damaged(offset)
            self._disk.create(f"{self._directory}/torn-{offset}{_SUFFIX}", torn)
            self._disk.truncate(self._path(start), offset - start)
            _log.warning("cutting off an incomplete entry at the end of the journal", bytes=len(torn), offset=offset)
        self.end = offset

    def remove_before(self, start: int) -> None:
        """Remove the segments before offset `start`. The files that they changed must be synced."""
        for segment in self.segments():
            if segment < start:
                self._disk.unlink(self._path(segment))

    def _read(self, start: int) -> bytes:
        # Use the descriptor, because the segment may have been removed. One call may return only a part.
        parts = []
        while part := os.pread(self._descriptor, os.fstat(self._descriptor).st_size - start, start):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _damaged(self, offset: int) -> Unavailable:
        path, size = self._path(self.start), offset - self.start
        return Unavailable(
            f"the journal is damaged at byte {size} of {path}, in a part that was synced: restore the file from a"
            f" backup. To continue without this entry and all later ones: truncate -s {size} {path}"
        )

    def _path(self, start: int) -> str:
        return f"{self._directory}/{start:016d}{_SUFFIX}"


def _refuse_positions_beyond(entry: JournalEntry, end: int) -> None:
    """Refuse an entry with a position beyond its own end, because a later entry could use that position again."""
    last = max((row.position for row in entry.rows), default=0)
    if last >= end:
        raise Permanent(f"event position {last} is beyond the end of its journal entry ({end}): please report this")


def _find_synced_offset(torn: bytes, offset: int) -> int:
    """Return the offset before which the journal was synced, according to the complete entries after a damaged one."""
    synced = 0
    for line in torn.splitlines(keepends=True):
        entry = _decode(line, offset)
        offset += len(line)
        if entry is not None:
            synced = max(synced, entry.synced)
    return synced


def _decode(line: bytes, offset: int) -> JournalEntry | None:
    """Return the entry of a line, or None if the line is incomplete, damaged or from another offset."""
    checksum, _, rest = line.partition(b" ")
    number, _, content = rest.partition(b" ")
    if not content.endswith(b"\n") or number != b"%d" % offset:
        return None
    content = content[:-1]
    if checksum != b"%08x" % zlib.crc32(content):
        return None
    return _decoder.decode(content)
