"""Write journal entries to the files of a store, and read those files."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from kingdom.backends.files.journal.entry import (
    DAMAGED,
    DEAD,
    PENDING,
    PROCESSING,
    UNREADABLE,
    EndedEvent,
    EventRow,
    JournalEntry,
    Lease,
    LogLines,
    RecordWrite,
    StreamPause,
)
from kingdom.backends.files.system.disk import Disk, read_file
from kingdom.backends.files.tree.archive_ids import add_archived_ids, contains_id
from kingdom.backends.files.tree.file_formats import (
    ArchiveLine,
    decode_archive_line,
    decode_body,
    decode_lease,
    decode_row,
    encode_event_file,
    encode_record_file,
    refuse_deep_nesting,
    safe_decoder,
)
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES, StoreLayout, file_name, id_of_name
from kingdom.bus.envelope import Envelope
from kingdom.bus.record import RecordKind
from kingdom.errors import MalformedEvent

_encode = msgspec.json.Encoder().encode
# Error numbers of a path that is not a plain file, and of a file that the system cannot read.
_NOT_A_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG})
# A key file without content expires 30 days after its modification time. The documentation promises this.
SEEN_SECONDS = 30 * 86_400.0


class UnreadableFile(MalformedEvent):
    """The system cannot read the file of an event. The event itself may be fine."""


class _KeyFile(msgspec.Struct):
    expires: float
    key: str


_key = safe_decoder(msgspec.json.Decoder(_KeyFile))


class FileTree:
    """Reads and writes the files. It writes new files first, then appends lines, and removes old files last."""

    def __init__(self, layout: StoreLayout, disk: Disk) -> None:
        self.layout = layout
        self.disk = disk
        # The directories that are known to exist.
        self._existing: set[str] = set()
        # A cache of event directories by stream and status, because every move of an event needs a path.
        self._event_directories: dict[tuple[str, str], str] = {}
        self._new = f"{layout.temporary}/new"

    def render(self, entry: JournalEntry) -> dict[str, bytes]:
        """Return the path and content of each new file of an entry. Raise an error if one of them cannot be stored."""
        for raw in (*entry.bodies.values(), *(stored.doc for stored in entry.records)):
            refuse_deep_nesting(bytes(raw))
        for scope, key, _ in entry.once:
            self.layout.key_file(scope, key)
        files = {self._record_path(stored): _record_file(stored) for stored in entry.records}
        files |= {self.layout.pause(pause.stream): _encode(pause) + b"\n" for pause in entry.pauses}
        for row in entry.rows:
            if (body := entry.bodies.get(row.position)) is not None:
                files[self.event_path(row)] = encode_event_file(row, body)
        return files

    def apply(self, entry: JournalEntry, before: Mapping[int, EventRow | None], files: Mapping[str, bytes]) -> None:
        """Apply an entry that was just committed. `before` has the previous row of each changed event."""
        for lease in entry.leases:
            self.apply_lease(lease)
        for path, content in files.items():
            self.ensure_directory(os.path.dirname(path))
            self.write(path, content)
        leftovers = self._move_events(entry, before)
        for stored in entry.records:
            if stored.earlier_directory not in (None, stored.directory):
                leftovers.append(self.layout.record(stored.earlier_directory or "", stored.header.id))
        self.write_keys(entry.once)
        if entry.log:
            self._append_log(entry.log)
        self._append_archive(entry.ended)
        leftovers += [self.layout.lease(token) for token in entry.closed]
        leftovers += [self.layout.record(directory, name) for _, directory, name in entry.removed]
        leftovers += [self.layout.pause(stream) for stream in entry.resumed]
        for path in leftovers:
            self.disk.unlink(path)

    def event_path(self, row: EventRow, status: str | None = None) -> str:
        """Return the path of an event file. By default it is in the directory of its own status."""
        return f"{self._directory(row.stream, status or row.status)}/{row.position:016d}-{row.event_id}.json"

    def _directory(self, stream: str, status: str) -> str:
        known = self._event_directories.get((stream, status))
        if known is None:
            known = self._event_directories[stream, status] = self.layout.events(stream, status)
        return known

    def prepare_event_path(self, row: EventRow) -> str:
        """Return the path of an event file, and create its directory if needed."""
        path = self.event_path(row)
        self.ensure_directory(self._event_directories[row.stream, row.status])
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically."""
        self.disk.create(self._new, content)
        self.disk.rename(self._new, path)

    def write_event(self, row: EventRow, body: msgspec.Raw) -> None:
        """Write the file of an event."""
        self.write(self.prepare_event_path(row), encode_event_file(row, body))

    def write_record(self, stored: RecordWrite) -> None:
        """Write the file of a record."""
        path = self._record_path(stored)
        self.ensure_directory(os.path.dirname(path))
        self.write(path, _record_file(stored))

    def _record_path(self, stored: RecordWrite) -> str:
        return self.layout.record(stored.directory, stored.header.id)

    def write_pause(self, pause: StreamPause) -> None:
        """Write the file that pauses a stream."""
        self.write(self.layout.pause(pause.stream), _encode(pause) + b"\n")

    def write_lease(self, lease: Lease) -> None:
        """Write the file of a lease."""
        self.write(self.layout.lease(lease.token), _encode(lease) + b"\n")

    def apply_lease(self, lease: Lease) -> None:
        """Write a lease of an entry. An existing file keeps its expiry, because renewals are not in the journal."""
        if (known := self.read_lease(lease.token)) is not None:
            lease = msgspec.structs.replace(lease, expires=known.expires, expires_at=known.expires_at)
        self.write_lease(lease)

    def read_lease(self, token: int) -> Lease | None:
        """Return a lease from its file; None if it is missing or unreadable."""
        try:
            return decode_lease(read_file(self.layout.lease(token)))
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def write_keys(self, keys: Sequence[tuple[str, str, float]]) -> None:
        """Write the files of dedup keys."""
        for scope, key, expires in keys:
            self.ensure_directory(self.layout.key_directory(scope))
            path = self.layout.key_file(scope, key)
            if self.layout.is_empty_key(scope, path):
                self.disk.stamp(path, expires - SEEN_SECONDS, b"")
            else:
                self.disk.stamp(path, expires, _encode(_KeyFile(expires, key)))

    def ensure_directory(self, directory: str) -> str:
        """Create a directory if needed. Only the first call for a directory checks the disk."""
        if directory not in self._existing:
            self.disk.make_directory(directory)
            self._existing.add(directory)
        return directory

    def forget_directories(self) -> None:
        """Clear the caches of directories, because a directory may have been removed."""
        self._existing.clear()
        self._event_directories.clear()

    def scan_events(self, stream: str, leases: Mapping[int, Lease]) -> Iterator[EventRow]:
        """Yield the rows of all events of a stream from its files. PROCESSING events without a lease become PENDING."""
        for status, name in STATUS_DIRECTORIES.items():
            directory = f"{self.layout.stream(stream)}/{name}"
            for file in _names(directory):
                row = _row_of_file(stream, status, directory, file)
                if row is None:
                    continue
                if status == PROCESSING:
                    lease = leases.get(row.position)
                    if lease is None:
                        self.ensure_directory(self.layout.events(stream, PENDING))
                        self.disk.rename(f"{directory}/{file}", f"{self.layout.events(stream, PENDING)}/{file}")
                        row.status = PENDING
                    else:
                        row.token, row.attempt, row.last_attempt_at = lease.token, row.attempt + 1, lease.claimed_at
                        row.cancel_requested |= row.position in lease.cancelled
                yield row

    def is_key_taken(self, scope: str, key: str, now: float) -> bool:
        """Return whether a dedup key is taken and has not expired."""
        try:
            return self.read_key(scope, self.layout.key_file(scope, key))[1] >= now
        except FileNotFoundError:
            return False

    def read_key(self, scope: str, path: str) -> tuple[str, float]:
        """Return a dedup key and its expiry. Prefer the content to the modification time, which copying changes."""
        if not self.layout.is_empty_key(scope, path):
            try:
                known = _key(read_file(path))
            except msgspec.MsgspecError:
                pass
            else:
                return known.key, known.expires
        return id_of_name(os.path.basename(path)) or "", os.stat(path).st_mtime + SEEN_SECONDS

    def read_content(self, row: EventRow) -> bytes | UnreadableFile | None:
        """Return the content of an event file, the reason why it is unreadable, or None if it is missing."""
        try:
            return _content(self.event_path(row))
        except FileNotFoundError:
            return None
        except UnreadableFile as error:
            return error

    def read_event(self, row: EventRow) -> tuple[Envelope, msgspec.Raw]:
        """Return the envelope of an event and its JSON; raise MalformedEvent or FileNotFoundError."""
        return decode_body(row, _content(self.event_path(row)))

    def read_archive(self, stream: str, event_id: str | None = None) -> Iterator[ArchiveLine]:
        """Yield the archived events of a stream, or only one event. A search for one event skips damaged lines."""
        wanted = event_id.encode() if event_id else b""
        for path in self.layout.archive_files(stream):
            # Retention may remove the file at any time.
            with suppress(FileNotFoundError), open(path, "rb") as file:
                for line in file:
                    if not line.endswith(b"\n") or wanted not in line:
                        continue
                    ended = decode_archive_line(line) if event_id is None else _decode_or_none(line)
                    if ended is not None and event_id in (None, ended.event["eventId"]):
                        yield ended

    def is_archived(self, stream: str, event_id: str) -> bool:
        """Return whether the archive contains an event id that a publisher chose."""
        for path in self.layout.archive_files(stream):
            # Retention may remove the file at any time.
            with suppress(FileNotFoundError):
                if contains_id(path, event_id, self.disk):
                    return True
        return False

    def find_record(self, kind: RecordKind, record_id: str) -> str | None:
        """Return the path of a record file in the directory of any state, or None."""
        paths = (self.layout.record(directory, record_id) for directory in self.layout.record_directories(kind))
        return next(filter(os.path.exists, paths), None)

    def read_body(self, row: EventRow) -> msgspec.Raw | None:
        """Return the body of an event from its file; None if it cannot be read."""
        try:
            return self.read_event(row)[1]
        except (FileNotFoundError, MalformedEvent):
            return None

    def _move_events(self, entry: JournalEntry, before: Mapping[int, EventRow | None]) -> list[str]:
        """Move the files of events that were not rewritten. Return the old files that must be removed."""
        leftovers: list[str] = []
        bodies, rename = entry.bodies, self.disk.rename
        for row in entry.rows:
            old = before[row.position]
            if old is None or old.status == row.status:
                continue
            path = self.event_path(old)
            if row.position in bodies:
                leftovers.append(path)
            else:
                # Only the directory changes.
                directory = self.ensure_directory(self._directory(row.stream, row.status))
                rename(path, f"{directory}{path[path.rindex('/') :]}")
        known = (before[ended.position] for ended in entry.ended)
        return [*leftovers, *(self.event_path(old) for old in known if old is not None)]

    def _append_log(self, part: LogLines) -> None:
        if part.keep_as:
            self.disk.rename(self.layout.log, f"{self.layout.logs}/{part.keep_as}")
        self.disk.append(self.layout.log, b"".join(b"%b\n" % bytes(line) for line in part.lines))

    def _append_archive(self, ended: Sequence[EndedEvent]) -> None:
        files: dict[tuple[str, str], list[EndedEvent]] = {}
        for each in ended:
            files.setdefault((each.stream, each.day), []).append(each)
        for (stream, day), events in files.items():
            path = self.layout.archive_file(stream, day)
            self.ensure_directory(os.path.dirname(path))
            self.disk.append(path, b"".join(bytes(event.line) + b"\n" for event in events))
            add_archived_ids(path, (event.event_id for event in events if event.event_id_given), self.disk)


def _record_file(stored: RecordWrite) -> bytes:
    in_name = id_of_name(file_name(stored.header.id)) is not None
    return encode_record_file(stored.header, stored.doc, id_in_name=in_name)


def _row_of_file(stream: str, status: str, directory: str, name: str) -> EventRow | None:
    """Return the row of an event from its file. A damaged or unreadable file gives a row with an error code."""
    position, _, event_id = name.removesuffix(".json").partition("-")
    if not _is_number(position):
        return None
    code = DAMAGED
    try:
        row = decode_row(stream, status, _content(f"{directory}/{name}"))
        if (row.position, row.event_id) == (int(position), event_id):
            return row
        reason = f"the file contains event {row.event_id}, but its name says {event_id}"
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        reason = f"cannot read its file: {error}"
    except UnreadableFile as error:
        code, reason = UNREADABLE, str(error)
    # Only the position and the event id are known, from the file name. The next claim reads the file again.
    changed = os.lstat(f"{directory}/{name}").st_mtime
    return EventRow(
        stream=stream,
        position=int(position),
        event_id=event_id,
        key=None,
        status=status,
        due=None if status == DEAD else changed,
        created_at=changed,
        max_attempts=10,
        processed_at=changed if status == DEAD else None,
        error_code=code,
        error_message=reason,
    )


def _decode_or_none(line: bytes) -> ArchiveLine | None:
    try:
        return decode_archive_line(line)
    except msgspec.MsgspecError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _content(path: str) -> bytes:
    """Return the content of an event file, or empty bytes if the path is not a plain file."""
    try:
        return read_file(path)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            return b""
        if error.errno in _UNREADABLE:
            remedy = f"check the owner of {path}, and the disk"
            raise UnreadableFile(f"cannot read its file ({error.strerror}): {remedy}") from error
        raise


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return []
