"""After a crash: what a run of entries comes to in the end, and making the files look like it."""

import os
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from kingdom.backends.files.journal.entry import Ended, Entry, Lease, Pause, Row, Stored
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.archive_ids import add_ended, index_anew
from kingdom.backends.files.tree.file_formats import moment, read_body, read_card, read_row
from kingdom.backends.files.tree.json_lines import first_number, whole_size_below
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES
from kingdom.backends.files.tree.tree import Tree
from kingdom.errors import MalformedEvent

_log = structlog.get_logger(__name__)


class Replay:
    """The last word of some entries on everything they touch; it may be spoken as often as one likes.

    Nothing is taken for granted: after a loss of power, whatever was not synced may be missing, old or half there.
    """

    def __init__(self, tree: Tree, entries: Sequence[tuple[int, Entry]]) -> None:
        self._tree = tree
        self._layout = tree.layout
        self._entries = entries
        self._rows: dict[tuple[str, int], Row | Ended | None] = {}
        self._bodies: dict[int, msgspec.Raw] = {}
        self._leases: dict[int, Lease | None] = {}
        self._records: dict[tuple[str, str], Stored | None] = {}
        # Every directory in which a record has been.
        self._places: dict[tuple[str, str], set[str]] = {}
        self._pauses: dict[str, Pause | None] = {}
        for _, entry in entries:
            self._take_in(entry)

    def run(self, *, thorough: bool) -> None:
        """Write what is missing, then remove what is left over; `thorough` trusts no line of any file."""
        self._tree.forget_directories()
        for _, entry in self._entries:
            self._tree.stamp_keys(entry.once)
        for lease in filter(None, self._leases.values()):
            self._tree.show_lease(lease)
        for row in self._rows.values():
            if isinstance(row, Row):
                self._restore_event(row, self._bodies.get(row.position))
        for stored in filter(None, self._records.values()):
            if not self._is_there(stored):
                self._tree.write_record(stored)
        self._restore_lines(thorough=thorough)
        for pause in filter(None, self._pauses.values()):
            self._tree.write_pause(pause)
        for path in self._leftovers():
            self._tree.disk.unlink(path)

    def _take_in(self, entry: Entry) -> None:
        self._bodies |= entry.bodies
        self._rows |= {(row.stream, row.position): row for row in entry.rows}
        self._rows |= {(ended.stream, ended.position): ended for ended in entry.ended}
        self._rows |= dict.fromkeys(entry.vanished)
        self._leases |= {lease.token: lease for lease in entry.leases}
        self._leases |= dict.fromkeys(entry.closed)
        for stored in entry.records:
            self._records[stored.card.kind, stored.card.id] = stored
            been = {stored.directory, stored.earlier_directory or stored.directory}
            self._places.setdefault((stored.card.kind, stored.card.id), set()).update(been)
        for kind, directory, name in entry.removed:
            self._records[kind, name] = None
            self._places.setdefault((kind, name), set()).add(directory)
        self._pauses |= {pause.stream: pause for pause in entry.pauses}
        self._pauses |= dict.fromkeys(entry.resumed)

    def _restore_event(self, row: Row, body: msgspec.Raw | None) -> None:
        """Bring one event's file into its place: written anew where an entry has its content, else only moved."""
        path = self._tree.event_path(row)
        elsewhere = [other for status in STATUS_DIRECTORIES if (other := self._tree.event_path(row, status)) != path]
        present = [each for each in (path, *elsewhere) if os.path.exists(each)]
        if body is not None:
            edited = (found for each in present if (found := _edited(row, each)) is not None)
            self._tree.write_event(row, next(edited, body))
        elif not present:
            _log.warning("the file of an event is gone", position=row.position, stream=row.stream)
        elif present[0] != path:
            self._tree.disk.rename(present[0], self._tree.room_for(row))
        for other in elsewhere:
            self._tree.disk.unlink(other)

    def _is_there(self, stored: Stored) -> bool:
        """Tell whether a record's file is of this very version; a person may have edited its document."""
        card = stored.card
        try:
            known = read_card(card.kind, card.id, read_file(self._layout.record(stored.directory, card.id)))
        except (OSError, msgspec.MsgspecError):
            return False
        return known.version == card.version and moment(known.updated_at) == moment(card.updated_at)

    def _restore_lines(self, *, thorough: bool) -> None:
        """Cut every file of lines off where the replay begins, and add all of them again."""
        files = self._lines_of_log()
        ended_in: dict[str, list[str]] = {}
        for _, entry in self._entries:
            for ended in entry.ended:
                done = self._layout.done(ended.stream, ended.day)
                files.setdefault(done, []).append(bytes(ended.line) + b"\n")
                ended_in.setdefault(done, []).extend([ended.event_id] if ended.event_id_given else [])
        for path, lines in files.items():
            self._tree.ready(os.path.dirname(path))
            size = whole_size_below(path, self._entries[0][0], thorough=thorough)
            if os.path.exists(path) and os.path.getsize(path) != size:
                self._tree.disk.truncate(path, size)
            self._tree.disk.append(path, b"".join(lines))
        for path, event_ids in ended_in.items():
            if thorough:
                index_anew(path, self._tree.disk)
            else:
                add_ended(path, event_ids, self._tree.disk)

    def _lines_of_log(self) -> dict[str, list[bytes]]:
        """Return the lines of the log by their file, after each file has got the name under which it is kept."""
        parts = [(place, entry.log) for place, entry in self._entries if entry.log]
        for place, part in parts:
            kept, begins = f"{self._layout.logs}/{part.keep_as}", first_number(self._layout.log)
            # A log that begins later is another one: this was kept in time, and may have been removed since.
            if part.keep_as and begins is not None and begins < place and not os.path.exists(kept):
                self._tree.disk.rename(self._layout.log, kept)
        files: dict[str, list[bytes]] = {}
        path = self._layout.log
        for _, part in reversed(parts):
            files[path] = [*(bytes(line) + b"\n" for line in part.lines), *files.get(path, ())]
            if part.keep_as:
                path = f"{self._layout.logs}/{part.keep_as}"
        return files

    def _leftovers(self) -> Iterator[str]:
        for (stream, position), row in self._rows.items():
            if not isinstance(row, Row):
                yield from self._files_of(stream, position, row)
        for (kind, name), stored in self._records.items():
            for directory in self._places[kind, name] - ({stored.directory} if stored else set()):
                yield self._layout.record(directory, name)
        for token, lease in self._leases.items():
            if lease is None:
                yield self._layout.lease(token)
        for stream, pause in self._pauses.items():
            if pause is None:
                yield self._layout.pause(stream)

    def _files_of(self, stream: str, position: int, ended: Ended | None) -> Iterator[str]:
        """Yield where the file of an event may be; of one that a person has removed only its position is known."""
        for status in STATUS_DIRECTORIES:
            directory, start = self._layout.events(stream, status), f"{position:016d}-"
            if ended is not None:
                yield f"{directory}/{start}{ended.event_id}.json"
            elif os.path.isdir(directory):
                yield from (f"{directory}/{name}" for name in os.listdir(directory) if name.startswith(start))


def _edited(row: Row, path: str) -> msgspec.Raw | None:
    """Return what a file says an event carries, as a person may have changed it; None where that cannot be had."""
    try:
        content = read_file(path)
        # One from before a patch is old, not edited.
        is_old = _patches(read_row(row.stream, row.status, content)) != _patches(row)
        return None if is_old else read_body(row, content)[1]
    except (OSError, msgspec.MsgspecError, MalformedEvent):
        return None


def _patches(row: Row) -> int:
    return sum(1 for each in row.history or () if each.get("what") == "patched")
