"""Convert the content of a store of files to exported items, and back."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from kingdom.backends.files.index.event_index import StreamIndex
from kingdom.backends.files.journal.entry import PENDING, EventRow, RecordHeader, RecordWrite
from kingdom.backends.files.store import Store
from kingdom.backends.files.tree.file_formats import (
    ArchiveLine,
    decode_document,
    encode_document,
    to_datetime,
    to_datetime_or_none,
)
from kingdom.backends.files.tree.layout import is_temporary_name
from kingdom.backends.files.tree.log import read_log
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
# The largest number of unreadable files that an error message lists.
_LISTED = 5


class StoreContents:
    """The content of a store. The caller holds the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def items(self) -> Iterator[AnyItem]:
        """Yield all items. At the end, raise an error if some files are unreadable."""
        unreadable: list[str] = []
        indexes = list(self._indexes())
        for row in sorted((row for index in indexes for row in index.rows.values()), key=lambda row: row.position):
            try:
                envelope, _ = self._store.tree.read_event(row)
            except FileNotFoundError:
                unreadable.append(f"{self._store.tree.event_path(row)} (missing)")
            except MalformedEvent as error:
                unreadable.append(f"{self._store.tree.event_path(row)} ({error})")
            else:
                yield _event_item(row, envelope)
        for index in indexes:
            yield from self._archived(index.name, unreadable)
            for key, queue in index.queues.items():
                if queue.blocked_by is not None:
                    yield BlockItem(stream=index.name, key=key, blocked_by=queue.blocked_by)
        yield from self._records()
        yield from self._keys(unreadable)
        for pause in self._store.events.pauses.values():
            yield PauseItem(stream=pause.stream, reason=pause.reason, actor=pause.actor, since=to_datetime(pause.since))
        yield from self._log()
        _refuse_unreadable([*unreadable, *self._damaged_records()])

    def census(self) -> ItemCounts:
        """Count all items."""
        counter = ItemCounter()
        for item in self.items():
            counter.add(item)
        return counter.counts

    def event_files(self) -> Iterator[str]:
        """Yield the files of all events."""
        return (self._store.tree.event_path(row) for index in self._indexes() for row in index.rows.values())

    def highest_number(self) -> int:
        """Return the highest position or token of the open and dead events."""
        rows = (row for index in self._indexes() for row in index.rows.values())
        return max((max(row.position, row.token) for row in rows), default=0)

    def broken_queues(self) -> Iterator[str]:
        """Describe each key whose queue has no head or two heads."""
        for index in self._indexes():
            for key, queue in index.queues.items():
                heads = sum(index.rows[position].due is not None for position in queue.open)
                if heads > 1:
                    yield f"two heads: {index.name}/{key}"
                if heads == 0 and queue.blocked_by is None:
                    yield f"no head: {index.name}/{key}"

    def record_write(self, item: RecordItem) -> RecordWrite:
        """Return a record as a write for the journal. Refuse a record whose file already exists."""
        kind = self._store.kinds.get(item.kind)
        directory = kind.directories.get(item.state) if kind else None
        if kind is None or directory is None:
            raise Misconfigured(
                f"records of kind {item.kind!r} in state {item.state!r} have no directory here:"
                " name the application that declares the kind with --app"
            )
        if (path := self._store.tree.find_record(kind, item.id)) is None:
            return RecordWrite(_header(item), encode_document(item.doc), directory, None)
        if self._store.records.get_header(item.kind, item.id):
            raise duplicate_item(f"record {item.id} of {item.kind}")
        raise Permanent(
            f"a record needs the path {path}, which exists: move that file, then import again; the import is undone"
        )

    def key_entry(self, item: DedupKeyItem) -> tuple[str, str, float]:
        """Return a dedup key in the form of a journal entry. Refuse a key that already exists."""
        if os.path.exists(self._store.layout.key_file(item.scope, item.key)):
            raise duplicate_item(f"key {item.key} of {item.scope}")
        return item.scope, item.key, item.expires_at.timestamp()

    def _indexes(self) -> Iterator[StreamIndex]:
        return map(self._store.events.stream, self._store.stream_names())

    def _archived(self, stream: str, unreadable: list[str]) -> Iterator[EventItem]:
        try:
            yield from (_archived_item(stream, line) for line in self._store.tree.read_archive(stream))
        except (msgspec.MsgspecError, MalformedEvent) as error:
            unreadable.append(f"a line in {self._store.layout.stream(stream)}/done ({error})")

    def _records(self) -> Iterator[RecordItem]:
        for kind in self._store.kinds:
            for header in self._store.records.headers(kind):
                if record := self._store.records.get(kind, header.id):
                    yield _record_item(header, record)

    def _damaged_records(self) -> Iterator[str]:
        """Yield the damaged files in record directories. Each of them may have been a record."""
        for name, kind in self._store.kinds.items():
            layout, headers = self._store.layout, self._store.records.headers(name)
            for directory in layout.record_directories(kind):
                known = {layout.record_name(directory, header.id) for header in headers}
                for path in Path(layout.root, directory).glob("*.json"):
                    if path.name not in known and not is_temporary_name(path.name) and path.is_file():
                        try:
                            decode_document(path.read_bytes())
                        except msgspec.MsgspecError as error:
                            yield f"{path} ({error})"

    def _keys(self, unreadable: list[str]) -> Iterator[DedupKeyItem]:
        for scope, directory in self._store.layout.key_scopes().items():
            with os.scandir(directory) as found:
                for path in (entry.path for entry in found if entry.is_file(follow_symlinks=False)):
                    key, expires = self._store.tree.read_key(scope, path)
                    if key:
                        yield DedupKeyItem(scope=scope, key=key, expires_at=to_datetime(expires))
                    else:
                        unreadable.append(f"{path} (neither its name nor its content contains the key)")

    def _log(self) -> Iterator[LogEntryItem]:
        cursor = LogCursor()
        while found := read_log(self._store.layout, cursor, _LOG_BATCH):
            cursor = found[-1].cursor
            yield from (_log_item(logged.entry) for logged in found)


def duplicate_item(item: str) -> Permanent:
    """Return the error for an item that the import contains twice."""
    return Permanent(f"the import contains this twice: {item}; the import is undone")


def _refuse_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        more = f" and {len(unreadable) - _LISTED} more" if len(unreadable) > _LISTED else ""
        raise Permanent(
            f"cannot read {len(unreadable)} file(s): {', '.join(unreadable[:_LISTED])}{more};"
            " fix or remove damaged files; restore missing files, or let a worker withdraw their events; then try again"
        )


def _event_item(row: EventRow, envelope: Envelope) -> EventItem:
    return EventItem(
        stream=row.stream,
        position=row.position,
        ordered=row.key is not None,
        envelope=envelope.to_wire(),
        status=row.status,  # type: ignore[arg-type] # one of the statuses
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        crash_count=row.crash_count,
        token=row.token,
        created_at=to_datetime(row.created_at),
        cancel_requested=row.cancel_requested,
        not_before=to_datetime_or_none(row.not_before),
        due_at=to_datetime_or_none(row.due),
        last_attempt_at=to_datetime_or_none(row.last_attempt_at),
        processed_at=to_datetime_or_none(row.processed_at),
        error_code=row.error_code,
        error_message=row.error_message,
        history=row.history or [],
        event_id_given=row.event_id_given,
    )


def _archived_item(stream: str, line: ArchiveLine) -> EventItem:
    return EventItem(
        stream=stream,
        position=line.position,
        ordered=line.ordered,
        envelope=Envelope.from_wire(line.event).to_wire(),
        status=line.status,  # type: ignore[arg-type] # one of the statuses
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


def to_row(event: EventItem, event_id: str) -> EventRow:
    """Return an exported event as a row of the index."""
    return EventRow(
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


def _record_item(header: RecordHeader, record: Record) -> RecordItem:
    return RecordItem(
        kind=record.kind,
        id=record.id,
        version=record.version,
        state=record.state,
        index_1=header.index_1,
        index_2=header.index_2,
        index_3=header.index_3,
        due_at=record.due_at,
        doc=dict(record.doc),
        created_at=to_datetime(header.created_at),
        updated_at=to_datetime(header.updated_at),
        ended_at=to_datetime_or_none(header.ended_at),
    )


def _header(item: RecordItem) -> RecordHeader:
    return RecordHeader(
        kind=item.kind,
        id=item.id,
        version=item.version,
        state=item.state,
        index_1=item.index_1,
        index_2=item.index_2,
        index_3=item.index_3,
        due_at=item.due_at.timestamp() if item.due_at else None,
        created_at=item.created_at.timestamp(),
        updated_at=item.updated_at.timestamp(),
        ended_at=item.ended_at.timestamp() if item.ended_at else None,
    )


def _log_item(entry: LogEntry) -> LogEntryItem:
    return LogEntryItem(
        type=entry.type,
        actor=entry.actor,
        data=dict(entry.data),
        at=entry.at,
        trace_id=entry.trace_id,
        aggregate_type=entry.aggregate_type,
        aggregate_id=entry.aggregate_id,
    )


def to_log_entry(item: LogEntryItem) -> LogEntry:
    """Return an exported log entry as an entry of this log."""
    return LogEntry(
        type=item.type,
        actor=item.actor,
        data=item.data,
        at=item.at,
        trace_id=item.trace_id,
        aggregate_type=item.aggregate_type,
        aggregate_id=item.aggregate_id,
    )
