"""Export and import a store of files. An export reads under the lock; an import fills an empty store in batches."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import chain, islice
from typing import Self, TypeVar

from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.journal.entry import EndedEvent, StreamPause
from kingdom.backends.files.moved_items import StoreContents, duplicate_item, to_log_entry, to_row
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.faults import translate_errors
from kingdom.backends.files.system.thread import DiskThread
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.file_formats import encode_archive_line, encode_body
from kingdom.backends.files.tree.layout import archive_index_file
from kingdom.bus.envelope import Envelope
from kingdom.errors import Permanent, Transient
from kingdom.storage.transfer import (
    AnyItem,
    BlockItem,
    DedupKeyItem,
    EventItem,
    ItemCounts,
    LogEntryItem,
    Manifest,
    PauseItem,
    RecordItem,
    Snapshot,
    StoreTransfer,
)

# The number of items in one journal entry. It limits the memory that an export or import needs.
_BATCH = 1000
T = TypeVar("T")


class FilesTransfer(StoreTransfer):
    """Exports and imports the store of a FilesBus. No other process or thread can use the store meanwhile."""

    store = "files"

    def __init__(self, bus: FilesBus) -> None:
        self._bus = bus
        self._store = bus.store
        self._contents = StoreContents(bus.store)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """See `StoreTransfer.snapshot`."""
        await self._bus.reap()
        async with _HeldStore(self._store) as holding:
            manifest = await holding.run(self._manifest)
            yield Snapshot(manifest, _read_in_batches(holding, self._contents.items()))

    async def import_items(self, items: AsyncIterable[AnyItem], manifest: Manifest) -> ItemCounts:
        """See `StoreTransfer.import_items`."""
        async with _HeldStore(self._store) as holding:
            if (found := await holding.run(self._contents.census)).total:
                raise Permanent(f"this store is not empty, it has {found}: import into a new directory")
            importing = _Import(self._store, self._contents, manifest)
            try:
                await holding.run(importing.begin)
                async for batch in _group_items(items):
                    await holding.run(partial(importing.add, batch))
                return await holding.run(importing.finish)
            except BaseException:
                await holding.run(importing.undo)
                raise

    def _manifest(self) -> Manifest:
        leases = [events for events in self._store.events.in_flight.values() if events]
        if leases:
            raise Transient(
                f"{sum(map(len, leases))} event(s) are in flight under {len(leases)} lease(s): stop the workers,"
                " or wait until the leases have expired, and export again"
            )
        # The file begins with the counts, so count all items before the export.
        census = self._contents.census()
        last = max(self._store.journal.end, self._contents.highest_number())
        return Manifest(census=census, last_position=last, last_token=last)


class _HeldStore:
    """A store held exclusively by its own thread.

    The thread of the bus cannot hold it: the lock is reentrant, so other calls in that thread could use the store too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = DiskThread("kingdom-moving")
        self._held = ExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self.run(lambda: self._held.enter_context(self._store.exclusive()))
        except BaseException:
            # If the caller was cancelled, the store may already be held, so release it.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._thread.run(self._held.close)
        finally:
            self._thread.stop()

    async def run(self, act: Callable[[], T]) -> T:
        """Run a call in the thread that holds the store."""

        def run_translated() -> T:
            with translate_errors():
                return act()

        return await self._thread.run(run_translated)


class _Import:
    """A running import. Until it is finished or undone, a marker file makes other processes refuse the store."""

    def __init__(self, store: Store, contents: StoreContents, manifest: Manifest) -> None:
        self._store = store
        self._contents = contents
        self._manifest = manifest
        self._blocks: list[BlockItem] = []
        # All written files except event files. Event files are found through the index.
        self._files: set[str] = set()

    def begin(self) -> None:
        """Write the marker, and continue the journal after all positions and tokens that were ever used."""
        self._write_marker()
        last = max(self._manifest.last_position, self._manifest.last_token, self._store.journal.end)
        self._store.skip_to(last + 1)

    def add(self, items: list[AnyItem]) -> None:
        """Write some items in one journal entry."""
        plan = self._store.new_plan()
        seen: set[tuple[str, str, str]] = set()
        for item in items:
            match item:
                case EventItem():
                    self._add_event(plan, item)
                case BlockItem():
                    self._blocks.append(item)
                case RecordItem():
                    _refuse_duplicate(seen, "record", item.kind, item.id)
                    plan.entry.records.append(self._contents.record_write(item))
                case DedupKeyItem():
                    _refuse_duplicate(seen, "key", item.scope, item.key)
                    plan.entry.once.append(self._contents.key_entry(item))
                case PauseItem():
                    if item.stream in plan.events.pauses:
                        raise duplicate_item(f"pause of {item.stream}")
                    paused = StreamPause(item.stream, item.reason, item.actor, item.since.timestamp())
                    plan.entry.pauses.append(paused)
                    plan.events.pauses[item.stream] = paused
                case LogEntryItem():
                    plan.log(to_log_entry(item))
                case _:
                    raise Permanent("the export has streams on Kafka, which only PostgreSQL can continue")
        self._files.update(self._files_of(plan))
        self._store.commit(plan, durable=False)
        if plan.entry.log and plan.entry.log.keep_as:
            self._files.add(f"{self._store.layout.logs}/{plan.entry.log.keep_as}")

    def finish(self) -> ItemCounts:
        """Check the imported content, sync it, and remove the marker."""
        plan = self._store.new_plan()
        for block in self._blocks:
            row = plan.events.stream(block.stream).rows.get(block.blocked_by)
            if row is None or row.key != block.key:
                raise Permanent(f"key {block.key} of {block.stream} is blocked by an event that is not in the file")
            plan.block_queue(row)
        if self._blocks:
            self._store.commit(plan)
        census = self._contents.census()
        if difference := census.difference(self._manifest.census):
            raise Permanent(f"the store has other counts than the export: {difference}; the import is undone")
        if broken := list(self._contents.broken_queues()):
            raise Permanent(f"the order of some keys is inconsistent: {', '.join(broken[:5])}; the import is undone")
        self._store.disk.sync_everything(self._store.layout.root)
        self._remove_marker()
        return census

    def undo(self) -> None:
        """Remove the imported files. All other files stay, because people may keep their own files in the directory."""
        self._write_marker()
        try:
            for path in chain(self._contents.event_files(), self._files):
                self._store.disk.unlink(path)
        finally:
            self._store.skip_to(self._store.journal.end + 1)
        self._remove_marker()

    def _write_marker(self) -> None:
        self._store.disk.create(self._store.layout.unfinished_import, b"")
        self._store.disk.sync_directory(self._store.layout.bus)

    def _remove_marker(self) -> None:
        self._store.disk.unlink(self._store.layout.unfinished_import)
        self._store.disk.sync_directory(self._store.layout.bus)

    def _files_of(self, plan: TransactionPlan) -> Iterator[str]:
        layout, entry = self._store.layout, plan.entry
        for archive in {layout.archive_file(ended.stream, ended.day) for ended in entry.ended}:
            yield from (archive, archive_index_file(archive))
        yield from (layout.record(stored.directory, stored.header.id) for stored in entry.records)
        yield from (layout.key_file(scope, key) for scope, key, _ in entry.once)
        yield from (layout.pause(pause.stream) for pause in entry.pauses)
        if plan.log_entries:
            yield layout.log

    def _add_event(self, plan: TransactionPlan, event: EventItem) -> None:
        index, event_id = plan.events.stream(event.stream), str(event.envelope.get("eventId"))
        if event.position in index.rows or (event.status in ("PENDING", "DEAD") and event_id in index.by_event):
            raise duplicate_item(f"event {event_id} of {event.stream}")
        body = encode_body(Envelope.from_wire(event.envelope), event.stream)
        row = to_row(event, event_id)
        if event.status in ("DONE", "DISCARDED"):
            day = f"{event.processed_at:%Y%m%d}"
            line = encode_archive_line(plan.offset, row, event.status, body)
            plan.entry.ended.append(EndedEvent(event.stream, event.position, event_id, day, line, event.event_id_given))
            plan.before[event.position] = None
        else:
            plan.import_event(row, body)


def _refuse_duplicate(seen: set[tuple[str, str, str]], item: str, group: str, name: str) -> None:
    if (item, group, name) in seen:
        raise duplicate_item(f"{item} {name} of {group}")
    seen.add((item, group, name))


async def _read_in_batches(holding: _HeldStore, items: Iterator[AnyItem]) -> AsyncIterator[AnyItem]:
    while batch := await holding.run(lambda: list(islice(items, _BATCH))):
        for item in batch:
            yield item


async def _group_items(items: AsyncIterable[AnyItem]) -> AsyncIterator[list[AnyItem]]:
    batch: list[AnyItem] = []
    async for item in items:
        batch.append(item)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
