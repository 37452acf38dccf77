"""Everything in a store of files as the items that move, and back again."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from kingdom.backends.files.bodies import EndedEvent, document, maybe, moment, read_document
from kingdom.backends.files.books import StreamBook
from kingdom.backends.files.entry import PENDING, Card, Row, Stored
from kingdom.backends.files.layout import is_unfinished
from kingdom.backends.files.log import read_log
from kingdom.backends.files.store import Store
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.record import Record
from kingdom.errors import MalformedEvent, Misconfigured, Permanent
from kingdom.storage.transfer import (
    AnyItem,
    BlockItem,
    DedupKeyItem,
    EventItem,
    ItemCounter,
    ItemCounts,
    LogEntryItem,
    PauseItem,
    RecordItem,
)

_LOG_BATCH = 1000
# Enough to see what is wrong.
_NAMED = 5


class Contents:
    """What a store holds, for who holds the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def items(self) -> Iterator[AnyItem]:
        """Yield everything; what cannot be read is refused at the end, so that all of it can be named."""
        unreadable: list[str] = []
        books = list(self._books())
        for row in sorted((row for book in books for row in book.rows.values()), key=lambda row: row.position):
            try:
                envelope, _ = self._store.tree.read_event(row)
            except FileNotFoundError:
                unreadable.append(f"{self._store.tree.event_path(row)} (it is gone)")
            except MalformedEvent as error:
                unreadable.append(f"{self._store.tree.event_path(row)} ({error})")
            else:
                yield _event(row, envelope)
        for book in books:
            yield from self._ended(book.name, unreadable)
            for key, line in book.lines.items():
                if line.blocked_by is not None:
                    yield BlockItem(stream=book.name, key=key, blocked_by=line.blocked_by)
        yield from self._records()
        yield from self._keys(unreadable)
        for pause in self._store.books.pauses.values():
            yield PauseItem(stream=pause.stream, reason=pause.reason, actor=pause.actor, since=moment(pause.since))
        yield from self._log()
        _refuse([*unreadable, *self._damaged_records()])

    def census(self) -> ItemCounts:
        """Count everything."""
        tally = ItemCounter()
        for item in self.items():
            tally.add(item)
        return tally.counts

    def event_files(self) -> Iterator[str]:
        """Yield where the files of all events are."""
        return (self._store.tree.event_path(row) for book in self._books() for row in book.rows.values())

    def highest(self) -> int:
        """Return the highest position or token of any event."""
        rows = (row for book in self._books() for row in book.rows.values())
        return max((max(row.position, row.token) for row in rows), default=0)

    def broken_lines(self) -> Iterator[str]:
        """Yield in words where the line of a key could not go on, or would go on twice."""
        for book in self._books():
            for key, line in book.lines.items():
                heads = sum(book.rows[position].due is not None for position in line.open)
                if heads > 1:
                    yield f"two heads: {book.name}/{key}"
                if heads == 0 and line.blocked_by is None:
                    yield f"no head: {book.name}/{key}"

    def stored(self, item: RecordItem) -> Stored:
        """Return a record with the place that it gets; refuses where that is not free."""
        kind = self._store.kinds.get(item.kind)
        directory = kind.directories.get(item.state) if kind else None
        if kind is None or directory is None:
            raise Misconfigured(
                f"records of kind {item.kind!r} in state {item.state!r} have no directory here:"
                " name the application that declares it by --app"
            )
        if (path := self._store.tree.record_path(kind, item.id)) is None:
            return Stored(_card(item), document(item.doc), directory, None)
        if self._store.shelf.card(item.kind, item.id):
            raise comes_twice(f"record {item.id} of {item.kind}")
        raise Permanent(f"{path} is in the way of a record: move it elsewhere, and import again; nothing was kept")

    def key(self, item: DedupKeyItem) -> tuple[str, str, float]:
        """Return a dedup key as an entry has it; refuses one that is there."""
        if os.path.exists(self._store.layout.once_key(item.scope, item.key)):
            raise comes_twice(f"key {item.key} of {item.scope}")
        return item.scope, item.key, item.expires_at.timestamp()

    def _books(self) -> Iterator[StreamBook]:
        return map(self._store.books.stream, self._store.stream_names())

    def _ended(self, stream: str, unreadable: list[str]) -> Iterator[EventItem]:
        try:
            yield from (_ended_event(stream, line) for line in self._store.tree.ended_events(stream))
        except (msgspec.MsgspecError, MalformedEvent) as error:
            unreadable.append(f"a line in {self._store.layout.stream(stream)}/done ({error})")

    def _records(self) -> Iterator[RecordItem]:
        for kind in self._store.kinds:
            for card in self._store.shelf.cards(kind):
                if record := self._store.shelf.get(kind, card.id):
                    yield _record(card, record)

    def _damaged_records(self) -> Iterator[str]:
        """Yield what lies among the records and is no document: it may have been one of them."""
        for name, kind in self._store.kinds.items():
            layout, cards = self._store.layout, self._store.shelf.cards(name)
            for directory in layout.record_directories(kind):
                known = {layout.record_name(directory, card.id) for card in cards}
                for path in Path(layout.root, directory).glob("*.json"):
                    if path.name not in known and not is_unfinished(path.name) and path.is_file():
                        try:
                            read_document(path.read_bytes())
                        except msgspec.MsgspecError as error:
                            yield f"{path} ({error})"

    def _keys(self, unreadable: list[str]) -> Iterator[DedupKeyItem]:
        for scope, directory in self._store.layout.once_scopes().items():
            with os.scandir(directory) as found:
                for path in (entry.path for entry in found if entry.is_file(follow_symlinks=False)):
                    key, expires = self._store.tree.read_key(scope, path)
                    if key:
                        yield DedupKeyItem(scope=scope, key=key, expires_at=moment(expires))
                    else:
                        unreadable.append(f"{path} (neither its name nor its content tells the key)")

    def _log(self) -> Iterator[LogEntryItem]:
        cursor = LogCursor()
        while found := read_log(self._store.layout, cursor, _LOG_BATCH):
            cursor = found[-1].cursor
            yield from (_logged(logged.entry) for logged in found)


def comes_twice(what: str) -> Permanent:
    """Return the refusal of what a store can hold only once."""
    return Permanent(f"the same thing comes twice: {what}; nothing was kept")


def _refuse(unreadable: list[str]) -> None:
    if unreadable:
        more = f" and {len(unreadable) - _NAMED} more" if len(unreadable) > _NAMED else ""
        raise Permanent(
            f"{len(unreadable)} file(s) cannot be read: {', '.join(unreadable[:_NAMED])}{more};"
            " mend or remove what is damaged, put back what is gone or let a worker notice it, then try again"
        )


def _event(row: Row, envelope: Envelope) -> EventItem:
    return EventItem(
        stream=row.stream,
        position=row.position,
        ordered=row.key is not None,
        envelope=envelope.to_wire(),
        status=row.status,  # type: ignore[arg-type]
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        crash_count=row.crash_count,
        token=row.token,
        created_at=moment(row.created_at),
        cancel_requested=row.cancel_requested,
        not_before=maybe(row.not_before),
        due_at=maybe(row.due),
        last_attempt_at=maybe(row.last_attempt_at),
        processed_at=maybe(row.processed_at),
        error_code=row.error_code,
        error_message=row.error_message,
        history=row.history or [],
        event_id_given=row.event_id_given,
    )


def _ended_event(stream: str, line: EndedEvent) -> EventItem:
    return EventItem(
        stream=stream,
        position=line.position,
        ordered=line.ordered,
        envelope=Envelope.from_wire(line.event).to_wire(),
        status=line.status,  # type: ignore[arg-type]
        attempt=line.attempts,
        max_attempts=line.max_attempts,
        crash_count=line.crashes,
        token=line.token,
        created_at=line.created_at,
        last_attempt_at=line.last_attempt_at,
        processed_at=line.ended_at,
        error_code=line.error.code if line.error else None,
        error_message=line.error.message if line.error else None,
        history=line.history or [],
        event_id_given=line.event_id_given,
    )


def row_of(event: EventItem, event_id: str) -> Row:
    """Return where an event stands."""
    return Row(
        stream=event.stream,
        position=event.position,
        event_id=str(UUID(event_id)),
        key=event.envelope.get("partitionKey") if event.ordered else None,
        status=event.status,
        due=event.due_at.timestamp() if event.due_at and event.status == PENDING else None,
        created_at=event.created_at.timestamp(),
        max_attempts=event.max_attempts,
        attempt=event.attempt,
        crash_count=event.crash_count,
        token=event.token,
        not_before=event.not_before.timestamp() if event.not_before else None,
        last_attempt_at=event.last_attempt_at.timestamp() if event.last_attempt_at else None,
        processed_at=event.processed_at.timestamp() if event.processed_at else None,
        cancel_requested=event.cancel_requested,
        error_code=event.error_code,
        error_message=event.error_message,
        history=event.history or None,
        event_id_given=event.event_id_given,
    )


def _record(card: Card, record: Record) -> RecordItem:
    return RecordItem(
        kind=record.kind,
        id=record.id,
        version=record.version,
        state=record.state,
        owner=record.owner,
        due_at=record.due_at,
        doc=dict(record.doc),
        created_at=moment(card.created_at),
        updated_at=moment(card.updated_at),
        ended_at=maybe(card.ended_at),
    )


def _card(item: RecordItem) -> Card:
    return Card(
        kind=item.kind,
        id=item.id,
        version=item.version,
        state=item.state,
        owner=item.owner,
        due_at=item.due_at.timestamp() if item.due_at else None,
        created_at=item.created_at.timestamp(),
        updated_at=item.updated_at.timestamp(),
        ended_at=item.ended_at.timestamp() if item.ended_at else None,
    )


def _logged(entry: LogEntry) -> LogEntryItem:
    return LogEntryItem(
        type=entry.type,
        actor=entry.actor,
        data=dict(entry.data),
        at=entry.at,
        trace_id=entry.trace_id,
        aggregate_type=entry.aggregate_type,
        aggregate_id=entry.aggregate_id,
    )


def log_entry_of(item: LogEntryItem) -> LogEntry:
    """Return an entry for the log."""
    return LogEntry(
        type=item.type,
        actor=item.actor,
        data=item.data,
        at=item.at,
        trace_id=item.trace_id,
        aggregate_type=item.aggregate_type,
        aggregate_id=item.aggregate_id,
    )
