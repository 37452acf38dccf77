"""Recovery after a crash: repeat the last journal entries, so that the files get the state that was committed."""

import os
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from kingdom.backends.files.journal.entry import EndedEvent, EventRow, JournalEntry, Lease, RecordWrite, StreamPause
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.archive_ids import add_archived_ids, rebuild_index
from kingdom.backends.files.tree.file_formats import decode_body, decode_header, decode_row, to_datetime
from kingdom.backends.files.tree.json_lines import first_number, size_of_lines_below
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES
from kingdom.backends.files.tree.tree import FileTree
from kingdom.errors import MalformedEvent

_log = structlog.get_logger(__name__)


class Replay:
    """The final state after some journal entries. Replaying them again has the same result.

    Nothing is assumed about the present files. After a power loss, unsynced files may be missing, old or incomplete.
    """

    def __init__(self, tree: FileTree, entries: Sequence[tuple[int, JournalEntry]]) -> None:
        self._tree = tree
        self._layout = tree.layout
        self._entries = entries
        self._rows: dict[tuple[str, int], EventRow | EndedEvent | None] = {}
        self._bodies: dict[int, msgspec.Raw] = {}
        self._leases: dict[int, Lease | None] = {}
        self._records: dict[tuple[str, str], RecordWrite | None] = {}
        # Every directory in which a file of the record may be.
        self._directories: dict[tuple[str, str], set[str]] = {}
        self._pauses: dict[str, StreamPause | None] = {}
        for _, entry in entries:
            self._collect(entry)

    def run(self, *, thorough: bool) -> None:
        """Write missing files, then remove old files. `thorough` also checks every line of the log and the archives."""
        self._tree.forget_directories()
        for _, entry in self._entries:
            self._tree.write_keys(entry.once)
        for lease in filter(None, self._leases.values()):
            self._tree.apply_lease(lease)
        for row in self._rows.values():
            if isinstance(row, EventRow):
                self._restore_event(row, self._bodies.get(row.position))
        for stored in filter(None, self._records.values()):
            if not self._is_current(stored):
                self._tree.write_record(stored)
        self._restore_lines(thorough=thorough)
        for pause in filter(None, self._pauses.values()):
            self._tree.write_pause(pause)
        for path in self._leftovers():
            self._tree.disk.unlink(path)

    def _collect(self, entry: JournalEntry) -> None:
        self._bodies |= entry.bodies
        self._rows |= {(row.stream, row.position): row for row in entry.rows}
        self._rows |= {(ended.stream, ended.position): ended for ended in entry.ended}
        self._rows |= dict.fromkeys(entry.vanished)
        self._leases |= {lease.token: lease for lease in entry.leases}
        self._leases |= dict.fromkeys(entry.closed)
        for stored in entry.records:
            self._records[stored.header.kind, stored.header.id] = stored
            directories = {stored.directory, stored.earlier_directory or stored.directory}
            self._directories.setdefault((stored.header.kind, stored.header.id), set()).update(directories)
        for kind, directory, name in entry.removed:
            self._records[kind, name] = None
            self._directories.setdefault((kind, name), set()).add(directory)
        self._pauses |= {pause.stream: pause for pause in entry.pauses}
        self._pauses |= dict.fromkeys(entry.resumed)

    def _restore_event(self, row: EventRow, body: msgspec.Raw | None) -> None:
        """Restore the file of an event. Rewrite it if an entry contains its body, else move it to its directory."""
        path = self._tree.event_path(row)
        elsewhere = [other for status in STATUS_DIRECTORIES if (other := self._tree.event_path(row, status)) != path]
        present = [each for each in (path, *elsewhere) if os.path.exists(each)]
        if body is not None:
            edited = (found for each in present if (found := _read_edited(row, each)) is not None)
            self._tree.write_event(row, next(edited, body))
        elif not present:
            _log.warning("the file of an event is missing", position=row.position, stream=row.stream)
        elif present[0] != path:
            self._tree.disk.rename(present[0], self._tree.prepare_event_path(row))
        for other in elsewhere:
            self._tree.disk.unlink(other)

    def _is_current(self, stored: RecordWrite) -> bool:
        """Return whether the file of a record has this version.

        The replay does not overwrite such a file, because a person may have edited it.
        """
        header = stored.header
        try:
            known = decode_header(header.kind, header.id, read_file(self._layout.record(stored.directory, header.id)))
        except (OSError, msgspec.MsgspecError):
            return False
        return known.version == header.version and to_datetime(known.updated_at) == to_datetime(header.updated_at)

    def _restore_lines(self, *, thorough: bool) -> None:
        """Cut off the lines that the replayed entries may have appended, and append all of them again."""
        files = self._collect_log_lines()
        given_ids: dict[str, list[str]] = {}
        for _, entry in self._entries:
            for ended in entry.ended:
                archive = self._layout.archive_file(ended.stream, ended.day)
                files.setdefault(archive, []).append(bytes(ended.line) + b"\n")
                given_ids.setdefault(archive, []).extend([ended.event_id] if ended.event_id_given else [])
        for path, lines in files.items():
            self._tree.ensure_directory(os.path.dirname(path))
            size = size_of_lines_below(path, self._entries[0][0], thorough=thorough)
            if os.path.exists(path) and os.path.getsize(path) != size:
                self._tree.disk.truncate(path, size)
            self._tree.disk.append(path, b"".join(lines))
        for path, event_ids in given_ids.items():
            if thorough:
                rebuild_index(path, self._tree.disk)
            else:
                add_archived_ids(path, event_ids, self._tree.disk)

    def _collect_log_lines(self) -> dict[str, list[bytes]]:
        """Rename the logs that must rotate, and return the log lines by file."""
        parts = [(offset, entry.log) for offset, entry in self._entries if entry.log]
        for offset, part in parts:
            kept, begins = f"{self._layout.logs}/{part.keep_as}", first_number(self._layout.log)
            # If the current log begins after this entry, the old log was already renamed, and perhaps removed later.
            if part.keep_as and begins is not None and begins < offset and not os.path.exists(kept):
                self._tree.disk.rename(self._layout.log, kept)
        files: dict[str, list[bytes]] = {}
        path = self._layout.log
        for _, part in reversed(parts):
            files[path] = [*(bytes(line) + b"\n" for line in part.lines), *files.get(path, ())]
            if part.keep_as:
                path = f"{self._layout.logs}/{part.keep_as}"
        return files

    def _leftovers(self) -> Iterator[str]:
        """Yield the files that must no longer exist."""
        for (stream, position), row in self._rows.items():
            if not isinstance(row, EventRow):
                yield from self._files_of(stream, position, row)
        for (kind, name), stored in self._records.items():
            for directory in self._directories[kind, name] - ({stored.directory} if stored else set()):
                yield self._layout.record(directory, name)
        for token, lease in self._leases.items():
            if lease is None:
                yield self._layout.lease(token)
        for stream, pause in self._pauses.items():
            if pause is None:
                yield self._layout.pause(stream)

    def _files_of(self, stream: str, position: int, ended: EndedEvent | None) -> Iterator[str]:
        """Yield the possible paths of the file of an ended event. `ended` is None if only the position is known."""
        for status in STATUS_DIRECTORIES:
            directory, start = self._layout.events(stream, status), f"{position:016d}-"
            if ended is not None:
                yield f"{directory}/{start}{ended.event_id}.json"
            elif os.path.isdir(directory):
                yield from (f"{directory}/{name}" for name in os.listdir(directory) if name.startswith(start))


def _read_edited(row: EventRow, path: str) -> msgspec.Raw | None:
    """Return the body of an event from its file, so that the edits of a person are kept.

    Return None if the file is unusable or older than the last `Operations.patch` of the event.
    """
    try:
        content = read_file(path)
        # A file with another number of patches was written before the last patch, so its body is outdated.
        is_old = _count_patches(decode_row(row.stream, row.status, content)) != _count_patches(row)
        return None if is_old else decode_body(row, content)[1]
    except (OSError, msgspec.MsgspecError, MalformedEvent):
        return None


def _count_patches(row: EventRow) -> int:
    return sum(1 for each in row.history or () if each.get("what") == "patched")
