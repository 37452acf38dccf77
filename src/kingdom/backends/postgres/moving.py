"""Export and import a PostgreSQL store.

An export reads one snapshot with cursors. An import fills empty tables with COPY in one transaction.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from msgspec.structs import astuple, replace
from psycopg import errors
from psycopg.rows import DictRow, dict_row

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.rows import read_envelope, to_json
from kingdom.bus.envelope import Envelope
from kingdom.errors import Permanent, Transient
from kingdom.storage.transfer import (
    AnyItem,
    BlockItem,
    CourierItem,
    DedupKeyItem,
    EventItem,
    ItemCounts,
    LogEntryItem,
    Manifest,
    PauseItem,
    ReadPartitionItem,
    RecordItem,
    Snapshot,
    StoreTransfer,
    TopicItem,
)

# The number of rows in one fetch or COPY. It limits the memory.
_BATCH = 1000


class _CopyRow(NamedTuple):
    """One row of a COPY statement, with its values in the order of the columns."""

    statement: str
    values: tuple[Any, ...]


class PostgresTransfer(StoreTransfer):
    """The whole schema of a PostgresBus for export and import."""

    store = "postgresql"

    def __init__(self, bus: PostgresBus) -> None:
        self._bus = bus

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """See `StoreTransfer.snapshot`."""
        with translate_errors():
            async with self._bus.pool.connection() as connection:
                # `PostgresBus.reap` may skip leases with low tokens, but here all expired leases must be reaped.
                while (await self._row(connection, "reap", low=0))["leases"]:
                    pass
                async with connection.transaction():
                    await self._run(connection, "begin_snapshot")
                    await self._run(connection, "remove_timeouts")
                    await self._refuse_events_in_flight(connection)
                    await self._refuse_unsent_events(connection)
                    async with aclosing(self._items(connection)) as items:
                        yield Snapshot(await self._manifest(connection), items)

    async def import_items(self, items: AsyncIterable[AnyItem], manifest: Manifest) -> ItemCounts:
        """See `StoreTransfer.import_items`."""
        with _translate_import_errors():
            async with self._bus.pool.connection() as connection, connection.transaction():
                await self._run(connection, "remove_timeouts")
                await self._run(connection, "lock_store")
                if (existing := await self._census(connection)).total:
                    raise Permanent(
                        f"this store is not empty, it has {existing}: import into a new database or another --schema"
                    )
                await self._write(connection, items)
                await self._run(connection, "rebuild_keys")
                counted = await self._census(connection)
                if difference := counted.difference(manifest.census):
                    raise Permanent(f"the store has other counts than the export: {difference}; the import is undone")
                if broken := await self._run(connection, "broken_invariants"):
                    listed = ", ".join(f"{row['what']}: {row['subject']}" for row in broken[:5])
                    raise Permanent(f"the order of some keys is inconsistent: {listed}; the import is undone")
                await self._run(
                    connection,
                    "continue_numbers",
                    last_position=manifest.last_position,
                    last_token=manifest.last_token,
                )
                return counted

    async def _refuse_events_in_flight(self, connection: Connection) -> None:
        in_flight = await self._row(connection, "in_flight")
        if in_flight["events"]:
            raise Transient(
                f"{in_flight['events']} event(s) are in flight under {in_flight['leases']} lease(s): stop the workers,"
                " or wait until the leases have expired, and export again"
            )

    async def _refuse_unsent_events(self, connection: Connection) -> None:
        if unsent := len(await self._run(connection, "unsent_events")):
            raise Transient(
                f"{unsent} event(s) wait for the courier: let `kingdom role courier` send them, stop it, then export"
            )

    async def _manifest(self, connection: Connection) -> Manifest:
        census = await self._census(connection)
        return Manifest(census=census, **await self._row(connection, "last_numbers"))

    async def _census(self, connection: Connection) -> ItemCounts:
        return ItemCounts(**await self._row(connection, "census"))

    async def _items(self, connection: Connection) -> AsyncGenerator[AnyItem, None]:
        for name, item in _EXPORTS.items():
            async with connection.cursor(name=name, row_factory=dict_row) as cursor:
                cursor.itersize = _BATCH
                await cursor.execute(self._bus.queries[name])
                async for row in cursor:
                    yield item(row)

    async def _write(self, connection: Connection, items: AsyncIterable[AnyItem]) -> None:
        waiting: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        async for item in items:
            name, row = _row_of(item)
            waiting[name].append(row)
            if len(waiting[name]) >= _BATCH:
                await self._copy(connection, name, waiting.pop(name))
        for name, rows in waiting.items():
            await self._copy(connection, name, rows)

    async def _copy(self, connection: Connection, name: str, rows: list[tuple[Any, ...]]) -> None:
        async with connection.cursor() as cursor, cursor.copy(self._bus.queries[name]) as copying:
            for row in rows:
                await copying.write_row(row)

    async def _row(self, connection: Connection, name: str, **parameters: object) -> DictRow:
        (row,) = await self._run(connection, name, **parameters)
        return row

    async def _run(self, connection: Connection, name: str, **parameters: object) -> list[DictRow]:
        cursor = await connection.execute(self._bus.queries[name], parameters)
        return await cursor.fetchall() if cursor.description else []


@contextmanager
def _translate_import_errors() -> Iterator[None]:
    """Translate errors of the driver, with messages about an import."""
    try:
        with translate_errors():
            yield
    except Transient as error:
        match error.__cause__:
            case errors.UniqueViolation() as cause:
                raise Permanent(
                    f"the import contains this twice: {cause.diag.message_detail}; the import is undone"
                ) from error
            case errors.LockNotAvailable():
                raise Transient("another process writes into this store: stop it, then import again") from error
        raise


def _event(row: DictRow) -> EventItem:
    return EventItem(
        stream=row["stream"],
        position=row["id"],
        ordered=row["ordered"],
        envelope=read_envelope(row, row["stream"]).to_wire(),
        status=row["status"],
        attempt=row["attempt_count"],
        max_attempts=row["max_attempts"],
        crash_count=row["crash_count"],
        token=row["lease_token"],
        created_at=row["created_at"],
        cancel_requested=row["cancel_requested"],
        not_before=row["not_before"],
        due_at=row["due_at"],
        last_attempt_at=row["last_attempt_at"],
        processed_at=row["processed_at"],
        error_code=row["last_error_code"],
        error_message=row["last_error_message"],
        history=row["history"] or [],
        event_id_given=row["event_id_given"],
    )


def _event_row(event: EventItem) -> _CopyRow:
    envelope = Envelope.from_wire(event.envelope)
    row = (
        event.position,
        envelope.event_id,
        event.stream,
        envelope.type,
        envelope.schema_version,
        envelope.occurred_at,
        envelope.trace_id,
        envelope.owner_id,
        envelope.partition_key,
        event.ordered,
        envelope.aggregate_type,
        envelope.aggregate_id,
        to_json(envelope.attributes),
        to_json(envelope.payload),
        event.attempt,
        event.max_attempts,
        event.crash_count,
        event.token,
        event.last_attempt_at,
        event.error_code,
        event.error_message,
        event.created_at,
        event.event_id_given,
        event.status,
        to_json(event.history) if event.history else None,
        event.processed_at,
    )
    if event.status in ("DONE", "DISCARDED"):
        return _CopyRow("import_archive", row)
    # An open event without a due time waits for an earlier event of its key.
    default_due_at = "infinity" if event.status == "PENDING" else event.processed_at
    return _CopyRow("import_live", (*row, event.cancel_requested, event.not_before, event.due_at or default_due_at))


def _row_of(item: AnyItem) -> _CopyRow:
    if isinstance(item, EventItem):
        return _event_row(item)
    if isinstance(item, LogEntryItem):
        item = replace(item, logged_at=item.logged_at or item.at)
    if isinstance(item, CourierItem):
        # Any courier of the new store can take the role at once.
        return _CopyRow("import_courier", (*_columns(item), "", "-infinity"))
    return _CopyRow(_IMPORTS[type(item)], _columns(item))


def _columns(item: AnyItem) -> tuple[Any, ...]:
    """Return the fields of an item. They have the same order as the columns in the COPY statement."""
    return tuple(to_json(value) if isinstance(value, dict) else value for value in astuple(item))


_EXPORTS: dict[str, Callable[[DictRow], AnyItem]] = {
    "export_live": _event,
    "export_archive": _event,
    "export_blocks": lambda row: BlockItem(**row),
    "export_records": lambda row: RecordItem(**row),
    "export_dedup_keys": lambda row: DedupKeyItem(**row),
    "export_pauses": lambda row: PauseItem(**row),
    "export_log": lambda row: LogEntryItem(**row),
    "export_read_partitions": lambda row: ReadPartitionItem(**row),
    "export_courier": lambda row: CourierItem(**row),
    "export_topics": lambda row: TopicItem(**row),
}
_IMPORTS: dict[type[AnyItem], str] = {
    BlockItem: "import_blocks",
    RecordItem: "import_records",
    DedupKeyItem: "import_dedup_keys",
    PauseItem: "import_pauses",
    LogEntryItem: "import_log",
    ReadPartitionItem: "import_read_partitions",
    TopicItem: "import_topics",
}
