"""Find records by id in their files, and by state, index or due time in an index that is built when first needed."""

import os
import stat
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import structlog

from kingdom.backends.files.journal.entry import JournalEntry, RecordHeader
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.file_formats import decode_document, decode_header, decode_record
from kingdom.backends.files.tree.layout import id_of_name
from kingdom.backends.files.tree.tree import FileTree
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.errors import Transient

_SUFFIX = ".json"
_T = TypeVar("_T", str, tuple[float, str])
# The number of an index, and a value in it.
IndexKey = tuple[int, str]
_log = structlog.get_logger(__name__)


class _KindIndex:
    """The headers of all records of one kind, and their ids in the orders that queries use."""

    def __init__(self) -> None:
        self.headers: dict[str, RecordHeader] = {}
        self.ids: list[str] = []
        self.by_state: dict[str, list[str]] = defaultdict(list)
        self.by_value: dict[IndexKey, list[str]] = defaultdict(list)
        self.by_due: list[tuple[float, str]] = []

    def put(self, header: RecordHeader) -> None:
        self.remove(header.id)
        self.headers[header.id] = header
        insort(self.ids, header.id)
        insort(self.by_state[header.state], header.id)
        for key in _index_keys(header):
            insort(self.by_value[key], header.id)
        if header.due_at is not None:
            insort(self.by_due, (header.due_at, header.id))

    def remove(self, record_id: str) -> None:
        header = self.headers.pop(record_id, None)
        if header is None:
            return
        _remove_sorted(self.ids, record_id)
        _remove_sorted(self.by_state[header.state], record_id)
        for key in _index_keys(header):
            _remove_sorted(self.by_value[key], record_id)
        if header.due_at is not None:
            _remove_sorted(self.by_due, (header.due_at, record_id))

    def candidates(self, query: RecordQuery, key: IndexKey | None) -> Iterator[str]:
        """Yield the ids that may match a query, in its order. `key` is the index and the value of the query."""
        if query.due_by is not None:
            end = bisect_right(self.by_due, (query.due_by.timestamp(), "\U0010ffff"))
            yield from (record_id for _, record_id in self.by_due[:end])
            return
        ids = self.ids
        if query.state is not None:
            ids = self.by_state[query.state]
        elif key is not None:
            ids = self.by_value[key]
        if query.descending:
            positions = reversed(range(len(ids) if query.after is None else bisect_left(ids, query.after)))
        else:
            positions = iter(range(bisect_right(ids, query.after or ""), len(ids)))
        for position in positions:
            yield ids[position]


class RecordIndex:
    """The records of a store as this process sees them.

    The directory of a file decides the state of its record, because a person may have moved the file. A document
    without metadata counts as version 1, except in a directory for dropped files. If a record has two files, the
    higher version counts. A query looks for a second file only if the file that it read is missing, damaged or older
    than the index.
    """

    def __init__(self, tree: FileTree, kinds: Mapping[str, RecordKind]) -> None:
        self._layout = tree.layout
        self._kinds = kinds
        self._indexes: dict[str, _KindIndex] = {}

    def get(self, kind: str, record_id: str) -> Record | None:
        """Return a record, read from its file."""
        found = self._find_file(kind, record_id)
        if found is None:
            return None
        self._update_index(found[0])
        return decode_record(self._kinds[kind], *found)

    def get_header(self, kind: str, record_id: str) -> RecordHeader | None:
        """Return the header of a record from its file. If the file was removed, remove the record from the index."""
        found = self._find_file(kind, record_id)
        if found is not None:
            self._update_index(found[0])
            return found[0]
        if (index := self._indexes.get(kind)) is not None:
            index.remove(record_id)
        return None

    def find(self, query: RecordQuery) -> list[Record]:
        """Return matching records."""
        kind = self._kinds.get(query.kind)
        if kind is None:
            return []
        found: list[Record] = []
        index = self._index(query.kind)
        key = (kind.index_number(query.index), query.value) if query.index and query.value is not None else None
        for record_id in index.candidates(query, key):
            if len(found) >= query.limit:
                break
            header = index.headers[record_id]
            if query.state not in (None, header.state) or (key and key not in _index_keys(header)):
                continue
            # A person may have moved the file since the index was built.
            seen = self._read_indexed(kind, header) or self._find_file(query.kind, record_id)
            if seen is not None and query.matches(record := decode_record(kind, *seen)):
                found.append(record)
        return found

    def ended_before(self, kind: str, moment: float) -> list[RecordHeader]:
        """Return the records of a kind that ended before a moment."""
        return [c for c in self._index(kind).headers.values() if c.ended_at is not None and c.ended_at < moment]

    def headers(self, kind: str) -> list[RecordHeader]:
        """Return the headers of all records of a kind, ordered by id."""
        index = self._index(kind)
        return [index.headers[record_id] for record_id in index.ids]

    def state_of(self, kind: str, record_id: str) -> str | None:
        """Return the state of a record from the index, or None."""
        header = self._index(kind).headers.get(record_id)
        return header.state if header else None

    def apply(self, entry: JournalEntry) -> None:
        """Apply the record changes of a journal entry."""
        for stored in entry.records:
            if (index := self._indexes.get(stored.header.kind)) is not None:
                index.put(stored.header)
        for kind, _, record_id in entry.removed:
            if (index := self._indexes.get(kind)) is not None:
                index.remove(record_id)

    def _index(self, kind: str) -> _KindIndex:
        index = self._indexes.get(kind)
        if index is None:
            index = _KindIndex()
            # If a record has two files, the higher version comes last and replaces the lower one.
            for header in sorted(self._scan(self._kinds[kind]), key=lambda header: (header.id, header.version)):
                index.put(header)
            self._indexes[kind] = index
        return index

    def _update_index(self, header: RecordHeader) -> None:
        """Correct the index if a person has moved the file of a record."""
        index = self._indexes.get(header.kind)
        if index is not None and ((known := index.headers.get(header.id)) is None or known.state != header.state):
            index.put(header)

    def _scan(self, kind: RecordKind) -> Iterator[RecordHeader]:
        """Yield the headers of all files that are records of a kind. Other files are ignored."""
        for directory in self._layout.record_directories(kind):
            for name in self._names(directory):
                path = f"{self._layout.root}/{directory}/{name}"
                try:
                    found = self._read(kind, directory, id_of_name(name.removesuffix(_SUFFIX)), path)
                except (PermissionError, msgspec.MsgspecError):
                    continue
                if found and found[0].id and self._layout.record_name(directory, found[0].id) == name:
                    yield found[0]

    def _names(self, directory: str) -> list[str]:
        try:
            names = os.listdir(f"{self._layout.root}/{directory}")
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if self._layout.is_record_name(directory, name)]

    def _read_indexed(self, kind: RecordKind, header: RecordHeader) -> tuple[RecordHeader, bytes] | None:
        """Return the record of a header, read from the directory of its state; None if it must be searched."""
        if (directory := kind.directories.get(header.state)) is None:
            return None
        try:
            found = self._read(kind, directory, header.id, self._layout.record(directory, header.id))
        except msgspec.MsgspecError:
            return None
        return found if found and found[0].version >= header.version else None

    def _find_file(self, kind_name: str, record_id: str) -> tuple[RecordHeader, bytes] | None:
        """Return the header of a record and the content of its file; raise Transient if it cannot be read."""
        kind = self._kinds.get(kind_name)
        if kind is None:
            return None
        found: list[tuple[RecordHeader, bytes]] = []
        damage: msgspec.MsgspecError | None = None
        for directory in self._layout.record_directories(kind):
            try:
                if each := self._read(kind, directory, record_id, self._layout.record(directory, record_id)):
                    found.append(each)
            except msgspec.MsgspecError as error:
                damage = error
        if len(found) > 1:
            _log.warning("a record has two files; the higher version counts", kind=kind_name, id=record_id)
        if not found and damage:
            raise Transient(f"cannot read the file of {kind_name} {record_id} ({damage}): fix it") from damage
        return max(found, key=lambda each: each[0].version, default=None)

    def _read(
        self, kind: RecordKind, directory: str, record_id: str | None, path: str
    ) -> tuple[RecordHeader, bytes] | None:
        """Return the header and the content of a file; None if it is not a record."""
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return None
            content = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        states = [state for state, each in kind.directories.items() if each == directory]
        try:
            header = decode_header(kind.name, record_id, content)
        except msgspec.ValidationError:
            # A file without metadata is accepted if it is a document.
            decode_document(content)
            known = self._header_without_metadata(kind, states, record_id, status.st_mtime)
            return None if known is None else (known, content)
        if header.state not in states:
            ended_at = header.ended_at or status.st_mtime
            header.state, header.ended_at = states[0], ended_at if states[0] in kind.final else None
        return header, content

    def _header_without_metadata(
        self, kind: RecordKind, states: Sequence[str], record_id: str | None, changed_at: float
    ) -> RecordHeader | None:
        """Return the header that the index has, or a new header of version 1."""
        if record_id is None:
            return None
        index = self._indexes.get(kind.name)
        known = index.headers.get(record_id) if index else None
        if known is not None and known.state in states:
            return known
        if kind.adoption is not None and kind.adoption.state in states:
            # This is a dropped file that is not adopted yet.
            return None
        return RecordHeader(
            kind=kind.name,
            id=record_id,
            version=1,
            state=states[0],
            index_1=None,
            due_at=None,
            created_at=changed_at,
            updated_at=changed_at,
            ended_at=changed_at if states[0] in kind.final else None,
        )


def _index_keys(header: RecordHeader) -> list[IndexKey]:
    return [(number, value) for number, value in enumerate(header.index_values, start=1) if value is not None]


def _remove_sorted(items: list[_T], item: _T) -> None:
    index = bisect_left(items, item)
    if index < len(items) and items[index] == item:
        del items[index]
