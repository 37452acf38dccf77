"""Finding records: by id from their file, by state, owner or due time from an index that is made when first needed."""

import os
import stat
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import structlog

from kingdom.backends.files.bodies import read_card, read_document, with_card
from kingdom.backends.files.disk import read_file
from kingdom.backends.files.entry import Card, Entry
from kingdom.backends.files.layout import id_of_name
from kingdom.backends.files.tree import Tree
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.errors import Transient

_SUFFIX = ".json"
_log = structlog.get_logger(__name__)


class _Index:
    """The cards of one kind, and their ids in the orders that queries ask for."""

    def __init__(self) -> None:
        self.cards: dict[str, Card] = {}
        self.ids: list[str] = []
        self.by_state: dict[str, list[str]] = defaultdict(list)
        self.by_owner: dict[str, list[str]] = defaultdict(list)
        self.by_due: list[tuple[float, str]] = []

    def put(self, card: Card) -> None:
        self.drop(card.id)
        self.cards[card.id] = card
        insort(self.ids, card.id)
        insort(self.by_state[card.state], card.id)
        if card.owner is not None:
            insort(self.by_owner[card.owner], card.id)
        if card.due_at is not None:
            insort(self.by_due, (card.due_at, card.id))

    def drop(self, record_id: str) -> None:
        card = self.cards.pop(record_id, None)
        if card is None:
            return
        _take_out(self.ids, record_id)
        _take_out(self.by_state[card.state], record_id)
        if card.owner is not None:
            _take_out(self.by_owner[card.owner], record_id)
        if card.due_at is not None:
            _take_out(self.by_due, (card.due_at, record_id))

    def candidates(self, query: RecordQuery) -> Iterator[str]:
        if query.due_by is not None:
            end = bisect_right(self.by_due, (query.due_by.timestamp(), "\U0010ffff"))
            yield from (record_id for _, record_id in self.by_due[:end])
            return
        ids = self.ids
        if query.state is not None:
            ids = self.by_state[query.state]
        elif query.owner is not None:
            ids = self.by_owner[query.owner]
        for index in range(bisect_right(ids, query.after or ""), len(ids)):
            yield ids[index]


class Shelf:
    """The records of a store as this process sees them.

    The directory is the state, also of a file that a person has moved. A document without our note counts as version 1,
    except where documents are dropped to be taken in; of two files of one record the higher version counts.
    """

    def __init__(self, tree: Tree, kinds: Mapping[str, RecordKind]) -> None:
        self._layout = tree.layout
        self._kinds = kinds
        self._indexes: dict[str, _Index] = {}

    def get(self, kind: str, record_id: str) -> Record | None:
        """Return a record, read from its file."""
        found = self._look(kind, record_id)
        if found is None:
            return None
        self._notice(found[0])
        return with_card(*found)

    def card(self, kind: str, record_id: str) -> Card | None:
        """Return what its file tells of a record besides its document; one whose file was removed is forgotten."""
        found = self._look(kind, record_id)
        if found is not None:
            self._notice(found[0])
            return found[0]
        if (index := self._indexes.get(kind)) is not None:
            index.drop(record_id)
        return None

    def find(self, query: RecordQuery) -> list[Record]:
        """Return matching records."""
        if query.kind not in self._kinds:
            return []
        found: list[Record] = []
        index = self._index(query.kind)
        for record_id in index.candidates(query):
            if len(found) >= query.limit:
                break
            card = index.cards[record_id]
            if query.state not in (None, card.state) or query.owner not in (None, card.owner):
                continue
            seen = self._look(query.kind, record_id)
            # A person may have moved it since the index was made.
            if seen is not None and query.matches(record := with_card(*seen)):
                found.append(record)
        return found

    def ended_before(self, kind: str, moment: float) -> list[Card]:
        """Return the records of a kind that ended before a moment."""
        return [c for c in self._index(kind).cards.values() if c.ended_at is not None and c.ended_at < moment]

    def cards(self, kind: str) -> list[Card]:
        """Return the cards of all records of a kind, by id."""
        index = self._index(kind)
        return [index.cards[record_id] for record_id in index.ids]

    def state_of(self, kind: str, record_id: str) -> str | None:
        """Return the state of a record, if there is one, without a look at its file."""
        card = self._index(kind).cards.get(record_id)
        return card.state if card else None

    def follow(self, entry: Entry) -> None:
        """Take in what an entry says of records."""
        for stored in entry.records:
            if (index := self._indexes.get(stored.card.kind)) is not None:
                index.put(stored.card)
        for kind, _, record_id in entry.removed:
            if (index := self._indexes.get(kind)) is not None:
                index.drop(record_id)

    def _index(self, kind: str) -> _Index:
        index = self._indexes.get(kind)
        if index is None:
            index = _Index()
            # Of two files of one record the higher version is put last.
            for card in sorted(self._scan(self._kinds[kind]), key=lambda card: (card.id, card.version)):
                index.put(card)
            self._indexes[kind] = index
        return index

    def _notice(self, card: Card) -> None:
        """Let the index know of a record that a person has moved."""
        index = self._indexes.get(card.kind)
        if index is not None and ((known := index.cards.get(card.id)) is None or known.state != card.state):
            index.put(card)

    def _scan(self, kind: RecordKind) -> Iterator[Card]:
        """Yield the cards of all files that are records of a kind; what else lies there is left alone."""
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

    def _look(self, kind_name: str, record_id: str) -> tuple[Card, bytes] | None:
        """Return the card of a record and what its file holds; raises Transient where that cannot be read."""
        kind = self._kinds.get(kind_name)
        if kind is None:
            return None
        found: list[tuple[Card, bytes]] = []
        damage: msgspec.MsgspecError | None = None
        for directory in self._layout.record_directories(kind):
            try:
                if each := self._read(kind, directory, record_id, self._layout.record(directory, record_id)):
                    found.append(each)
            except msgspec.MsgspecError as error:
                damage = error
        if len(found) > 1:
            _log.warning("two files of one record, the higher version counts", kind=kind_name, id=record_id)
        if not found and damage:
            raise Transient(f"the file of {kind_name} {record_id} cannot be read ({damage}): mend it") from damage
        return max(found, key=lambda each: each[0].version, default=None)

    def _read(self, kind: RecordKind, directory: str, record_id: str | None, path: str) -> tuple[Card, bytes] | None:
        """Return the card of a file and what it holds; None where it is no record."""
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return None
            content = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        states = [state for state, each in kind.directories.items() if each == directory]
        try:
            card = read_card(kind.name, record_id, content)
        except msgspec.ValidationError:
            # An editor may have removed our note, or it never had one; it must be a document all the same.
            read_document(content)
            known = self._card_without_note(kind, states, record_id, status.st_mtime)
            return None if known is None else (known, content)
        if card.state not in states:
            ended_at = card.ended_at or status.st_mtime
            card.state, card.ended_at = states[0], ended_at if states[0] in kind.final else None
        return card, content

    def _card_without_note(
        self, kind: RecordKind, states: Sequence[str], record_id: str | None, changed_at: float
    ) -> Card | None:
        if record_id is None:
            return None
        index = self._indexes.get(kind.name)
        known = index.cards.get(record_id) if index else None
        if known is not None and known.state in states:
            return known
        if kind.adoption is not None and kind.adoption.state in states:
            # It was dropped, and has yet to be taken in.
            return None
        return Card(
            kind=kind.name,
            id=record_id,
            version=1,
            state=states[0],
            owner=None,
            due_at=None,
            created_at=changed_at,
            updated_at=changed_at,
            ended_at=changed_at if states[0] in kind.final else None,
        )


def _take_out(items: list, item: object) -> None:  # type: ignore[type-arg]
    index = bisect_left(items, item)
    if index < len(items) and items[index] == item:
        del items[index]
