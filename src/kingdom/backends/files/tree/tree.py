"""The files: made to look as an entry says, and read by who has no books yet."""

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
    Ended,
    Entry,
    Lease,
    LogPart,
    Pause,
    Row,
    Stored,
)
from kingdom.backends.files.system.disk import Disk, read_file
from kingdom.backends.files.tree.archive_ids import add_ended, has_ended
from kingdom.backends.files.tree.file_formats import (
    EndedEvent,
    event_file,
    read_body,
    read_ended,
    read_row,
    record_file,
    refuse_too_deep,
)
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES, Layout, file_name, id_of_name
from kingdom.bus.envelope import Envelope
from kingdom.bus.record import RecordKind
from kingdom.errors import MalformedEvent

_encode = msgspec.json.Encoder().encode
# How the system says that a name is no plain file, and that it cannot read this one; any other error is not its own.
_IN_ITS_PLACE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG})
_lease = msgspec.json.Decoder(Lease).decode
# How long a key counts whose file is empty: as the source document says, from its time of change on.
SEEN_SECONDS = 30 * 86_400.0


class UnreadableFile(MalformedEvent):
    """Raised where the system does not give out the file of an event: nothing is known to be wrong with the event."""


class _Key(msgspec.Struct):
    expires: float
    key: str


_key = msgspec.json.Decoder(_Key).decode


class Tree:
    """Writes files in one order: what is new, then lines, then removals; a thing shows twice rather than never."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self.layout = layout
        self.disk = disk
        self._made: set[str] = set()
        # The directories of events by stream and status: a path is made for every move of every event.
        self._of_events: dict[tuple[str, str], str] = {}
        self._new = f"{layout.temporary}/new"

    def render(self, entry: Entry) -> dict[str, bytes]:
        """Return the new files of an entry: what cannot be written down must fail before it is committed."""
        for raw in (*entry.bodies.values(), *(stored.doc for stored in entry.records)):
            refuse_too_deep(bytes(raw))
        for scope, key, _ in entry.once:
            self.layout.once_key(scope, key)
        files = {self._record_path(stored): _record_file(stored) for stored in entry.records}
        files |= {self.layout.pause(pause.stream): _encode(pause) + b"\n" for pause in entry.pauses}
        for row in entry.rows:
            if (body := entry.bodies.get(row.position)) is not None:
                files[self.event_path(row)] = event_file(row, body)
        return files

    def apply(self, entry: Entry, before: Mapping[int, Row | None], files: Mapping[str, bytes]) -> None:
        """Show an entry that was just written; `before` tells where each event came from."""
        for lease in entry.leases:
            self.show_lease(lease)
        for path, content in files.items():
            self.ready(os.path.dirname(path))
            self.write(path, content)
        leftovers = self._move_events(entry, before)
        for stored in entry.records:
            if stored.earlier_directory not in (None, stored.directory):
                leftovers.append(self.layout.record(stored.earlier_directory or "", stored.card.id))
        self.stamp_keys(entry.once)
        if entry.log:
            self._add_log(entry.log)
        self._add_ended(entry.ended)
        leftovers += [self.layout.lease(token) for token in entry.closed]
        leftovers += [self.layout.record(directory, name) for _, directory, name in entry.removed]
        leftovers += [self.layout.pause(stream) for stream in entry.resumed]
        for path in leftovers:
            self.disk.unlink(path)

    def event_path(self, row: Row, status: str | None = None) -> str:
        """Return the file of an event in its status, or in another one."""
        return f"{self._directory(row.stream, status or row.status)}/{row.position:016d}-{row.event_id}.json"

    def _directory(self, stream: str, status: str) -> str:
        known = self._of_events.get((stream, status))
        if known is None:
            known = self._of_events[stream, status] = self.layout.events(stream, status)
        return known

    def room_for(self, row: Row) -> str:
        """Return the file of an event as one that can be written: its directory is there."""
        path = self.event_path(row)
        self.ready(self._of_events[row.stream, row.status])
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write a file that appears whole or not at all."""
        self.disk.create(self._new, content)
        self.disk.rename(self._new, path)

    def write_event(self, row: Row, body: msgspec.Raw) -> None:
        """Write the file of an event."""
        self.write(self.room_for(row), event_file(row, body))

    def write_record(self, stored: Stored) -> None:
        """Write the file of a record."""
        path = self._record_path(stored)
        self.ready(os.path.dirname(path))
        self.write(path, _record_file(stored))

    def _record_path(self, stored: Stored) -> str:
        return self.layout.record(stored.directory, stored.card.id)

    def write_pause(self, pause: Pause) -> None:
        """Write the file that stops a stream."""
        self.write(self.layout.pause(pause.stream), _encode(pause) + b"\n")

    def write_lease(self, lease: Lease) -> None:
        """Write the file of a lease."""
        self.write(self.layout.lease(lease.token), _encode(lease) + b"\n")

    def show_lease(self, lease: Lease) -> None:
        """Write a lease as an entry has it; renewals are in its file alone, so the time of a known one stays."""
        if (known := self.read_lease(lease.token)) is not None:
            lease = msgspec.structs.replace(lease, expires=known.expires, expires_at=known.expires_at)
        self.write_lease(lease)

    def read_lease(self, token: int) -> Lease | None:
        """Return a lease from its file; None where there is none that can be read."""
        try:
            return _lease(read_file(self.layout.lease(token)))
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def stamp_keys(self, keys: Sequence[tuple[str, str, float]]) -> None:
        """Take dedup keys."""
        for scope, key, expires in keys:
            self.ready(self.layout.once_scope(scope))
            path = self.layout.once_key(scope, key)
            if self.layout.is_empty_key(scope, path):
                self.disk.stamp(path, expires - SEEN_SECONDS, b"")
            else:
                self.disk.stamp(path, expires, _encode(_Key(expires, key)))

    def ready(self, directory: str) -> str:
        """Make a directory where it is missing, and look only once."""
        if directory not in self._made:
            self.disk.make_directory(directory)
            self._made.add(directory)
        return directory

    def forget_directories(self) -> None:
        """Look for directories again: somebody may have removed one."""
        self._made.clear()
        self._of_events.clear()

    def scan_events(self, stream: str, leases: Mapping[int, Lease]) -> Iterator[Row]:
        """Yield the standing of every event of a stream, from its files; mends what a person has left behind."""
        for status, name in STATUS_DIRECTORIES.items():
            directory = f"{self.layout.stream(stream)}/{name}"
            for file in _names(directory):
                row = _row_of_file(stream, status, directory, file)
                if row is None:
                    continue
                if status == PROCESSING:
                    lease = leases.get(row.position)
                    if lease is None:
                        self.ready(self.layout.events(stream, PENDING))
                        self.disk.rename(f"{directory}/{file}", f"{self.layout.events(stream, PENDING)}/{file}")
                        row.status = PENDING
                    else:
                        row.token, row.attempt, row.last_attempt_at = lease.token, row.attempt + 1, lease.claimed_at
                        row.cancel_requested |= row.position in lease.cancelled
                yield row

    def is_taken(self, scope: str, key: str, now: float) -> bool:
        """Tell whether a dedup key is taken and has not expired."""
        try:
            return self.read_key(scope, self.layout.once_key(scope, key))[1] >= now
        except FileNotFoundError:
            return False

    def read_key(self, scope: str, path: str) -> tuple[str, float]:
        """Return a dedup key and when it expires; not by the time of change alone, which a copy does not keep."""
        if not self.layout.is_empty_key(scope, path):
            try:
                known = _key(read_file(path))
            except msgspec.MsgspecError:
                pass
            else:
                return known.key, known.expires
        return id_of_name(os.path.basename(path)) or "", os.stat(path).st_mtime + SEEN_SECONDS

    def content(self, row: Row) -> bytes | UnreadableFile | None:
        """Return what the file of an event holds, or why that cannot be had; None where it is gone."""
        try:
            return _content(self.event_path(row))
        except FileNotFoundError:
            return None
        except UnreadableFile as error:
            return error

    def read_event(self, row: Row) -> tuple[Envelope, msgspec.Raw]:
        """Return an event's envelope, and as JSON; raises MalformedEvent or FileNotFoundError."""
        return read_body(row, _content(self.event_path(row)))

    def ended_events(self, stream: str, event_id: str | None = None) -> Iterator[EndedEvent]:
        """Yield what is kept of a stream's events that have ended; who looks for one passes over foreign lines."""
        wanted = event_id.encode() if event_id else b""
        for path in self.layout.done_days(stream):
            # It may be too old to be kept any longer.
            with suppress(FileNotFoundError), open(path, "rb") as file:
                for line in file:
                    if not line.endswith(b"\n") or wanted not in line:
                        continue
                    ended = read_ended(line) if event_id is None else _ended(line)
                    if ended is not None and event_id in (None, ended.event["eventId"]):
                        yield ended

    def has_ended(self, stream: str, event_id: str) -> bool:
        """Tell whether an id that a caller chose is among ended events that are kept; their number does not matter."""
        for path in self.layout.done_days(stream):
            # It may be too old to be kept any longer.
            with suppress(FileNotFoundError):
                if has_ended(path, event_id, self.disk):
                    return True
        return False

    def record_path(self, kind: RecordKind, record_id: str) -> str | None:
        """Return the file of a record, whatever its state, or None."""
        paths = (self.layout.record(directory, record_id) for directory in self.layout.record_directories(kind))
        return next(filter(os.path.exists, paths), None)

    def body(self, row: Row) -> msgspec.Raw | None:
        """Return what an event carries, from its file; None where that cannot be read."""
        try:
            return self.read_event(row)[1]
        except (FileNotFoundError, MalformedEvent):
            return None

    def _move_events(self, entry: Entry, before: Mapping[int, Row | None]) -> list[str]:
        """Move the files of events that were not written anew; returns those that are left over."""
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
                # Only its directory changes.
                directory = self.ready(self._directory(row.stream, row.status))
                rename(path, f"{directory}{path[path.rindex('/') :]}")
        known = (before[ended.position] for ended in entry.ended)
        return [*leftovers, *(self.event_path(old) for old in known if old is not None)]

    def _add_log(self, part: LogPart) -> None:
        if part.keep_as:
            self.disk.rename(self.layout.log, f"{self.layout.logs}/{part.keep_as}")
        self.disk.append(self.layout.log, b"".join(b"%b\n" % bytes(line) for line in part.lines))

    def _add_ended(self, ended: Sequence[Ended]) -> None:
        files: dict[tuple[str, str], list[Ended]] = {}
        for each in ended:
            files.setdefault((each.stream, each.day), []).append(each)
        for (stream, day), events in files.items():
            path = self.layout.done(stream, day)
            self.ready(os.path.dirname(path))
            self.disk.append(path, b"".join(bytes(event.line) + b"\n" for event in events))
            add_ended(path, (event.event_id for event in events if event.event_id_given), self.disk)


def _record_file(stored: Stored) -> bytes:
    tells = id_of_name(file_name(stored.card.id)) is not None
    return record_file(stored.card, stored.doc, name_tells_id=tells)


def _row_of_file(stream: str, status: str, directory: str, name: str) -> Row | None:
    position, _, event_id = name.removesuffix(".json").partition("-")
    if not _is_number(position):
        return None
    code = DAMAGED
    try:
        row = read_row(stream, status, _content(f"{directory}/{name}"))
        if (row.position, row.event_id) == (int(position), event_id):
            return row
        reason = f"its file tells of {row.event_id}, its name of {event_id}"
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        reason = f"its file cannot be read: {error}"
    except UnreadableFile as error:
        code, reason = UNREADABLE, str(error)
    # Its name is all that can be told; a claim will look at it again.
    changed = os.lstat(f"{directory}/{name}").st_mtime
    return Row(
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


def _ended(line: bytes) -> EndedEvent | None:
    try:
        return read_ended(line)
    except msgspec.MsgspecError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _content(path: str) -> bytes:
    """Return what the file of an event holds; nothing where a link or a directory is in its place."""
    try:
        return read_file(path)
    except OSError as error:
        if error.errno in _IN_ITS_PLACE:
            return b""
        if error.errno in _UNREADABLE:
            remedy = f"see who owns {path}, and whether the disk is sound"
            raise UnreadableFile(f"its file cannot be read ({error.strerror}): {remedy}") from error
        raise


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return []
