"""Moving house with files: everything is read under the lock, and written into an empty store entry by entry."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import chain, islice
from typing import Self, TypeVar

from kingdom.backends.files.bodies import body_of, ended_line
from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import Ended
from kingdom.backends.files.entry import Pause as PausedStream
from kingdom.backends.files.faults import translated
from kingdom.backends.files.layout import index_of
from kingdom.backends.files.moved_items import Contents, comes_twice, log_entry_of, row_of
from kingdom.backends.files.store import Store
from kingdom.backends.files.thread import DiskThread
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

# Things that travel together: what is held in memory at any moment.
_BATCH = 1000
T = TypeVar("T")


class FilesTransfer(StoreTransfer):
    """The whole directory of a FilesBus, given away or taken in; nobody else gets in meanwhile, nor does its bus."""

    store = "files"

    def __init__(self, bus: FilesBus) -> None:
        self._bus = bus
        self._store = bus.store
        self._contents = Contents(bus.store)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """See the port."""
        await self._bus.reap()
        async with _Holding(self._store) as holding:
            manifest = await holding.run(self._manifest)
            yield Snapshot(manifest, _batches(holding, self._contents.items()))

    async def take_in(self, items: AsyncIterable[AnyItem], manifest: Manifest) -> ItemCounts:
        """See the port."""
        async with _Holding(self._store) as holding:
            if (there := await holding.run(self._contents.census)).total:
                raise Permanent(f"this store is not empty, it holds {there}: import into a new directory")
            arrival = _Arrival(self._store, self._contents, manifest)
            try:
                await holding.run(arrival.begin)
                async for batch in _grouped(items):
                    await holding.run(lambda batch=batch: arrival.add(batch))  # type: ignore[misc]
                return await holding.run(arrival.finish)
            except BaseException:
                await holding.run(arrival.undo)
                raise

    def _manifest(self) -> Manifest:
        leases = [events for events in self._store.books.flying.values() if events]
        if leases:
            raise Transient(
                f"{sum(map(len, leases))} event(s) are in flight under {len(leases)} lease(s): stop the workers,"
                " or wait until the leases have expired, and export again"
            )
        # A first look at everything: how many there are must be known before the first one goes.
        census = self._contents.census()
        last = max(self._store.journal.end, self._contents.highest())
        return Manifest(census=census, last_position=last, last_token=last)


class _Holding:
    """A store that is held in a thread of its own, and let go there whatever happens.

    In the thread of the bus others would come in between: who holds a store may enter it a second time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = DiskThread("kingdom-moving")
        self._held = ExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self.run(lambda: self._held.enter_context(self._store.exclusive()))
        except BaseException:
            # Who is cancelled on the way in holds it all the same.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._thread.run(self._held.close)
        finally:
            self._thread.stop()

    async def run(self, act: Callable[[], T]) -> T:
        """Do something with the store."""

        def do() -> T:
            with translated():
                return act()

        return await self._thread.run(do)


class _Arrival:
    """An import under way; a note in the store tells everybody until it is complete, or gone again."""

    def __init__(self, store: Store, contents: Contents, manifest: Manifest) -> None:
        self._store = store
        self._contents = contents
        self._manifest = manifest
        self._blocks: list[BlockItem] = []
        # All that was written but the files of events, of which the books know.
        self._files: set[str] = set()

    def begin(self) -> None:
        """Note that the store is not whole, and go beyond every number that was ever given."""
        self._note()
        last = max(self._manifest.last_position, self._manifest.last_token, self._store.journal.end)
        self._store.skip_to(last + 1)

    def add(self, items: list[AnyItem]) -> None:
        """Write some of it, in one entry."""
        draft = self._store.draft()
        seen: set[tuple[str, str, str]] = set()
        for item in items:
            match item:
                case EventItem():
                    self._add_event(draft, item)
                case BlockItem():
                    self._blocks.append(item)
                case RecordItem():
                    _refuse_twice(seen, "record", item.kind, item.id)
                    draft.entry.records.append(self._contents.stored(item))
                case DedupKeyItem():
                    _refuse_twice(seen, "key", item.scope, item.key)
                    draft.entry.once.append(self._contents.key(item))
                case PauseItem():
                    if item.stream in draft.books.pauses:
                        raise comes_twice(f"pause of {item.stream}")
                    paused = PausedStream(item.stream, item.reason, item.actor, item.since.timestamp())
                    draft.entry.pauses.append(paused)
                    draft.books.pauses[item.stream] = paused
                case LogEntryItem():
                    draft.say(log_entry_of(item))
        self._files.update(self._files_of(draft))
        self._store.commit(draft, durable=False)
        if draft.entry.log and draft.entry.log.keep_as:
            self._files.add(f"{self._store.layout.logs}/{draft.entry.log.keep_as}")

    def finish(self) -> ItemCounts:
        """Check what has come, make it last, and remove the note."""
        draft = self._store.draft()
        for block in self._blocks:
            row = draft.books.stream(block.stream).rows.get(block.blocked_by)
            if row is None or row.key != block.key:
                raise Permanent(f"key {block.key} of {block.stream} is blocked by an event that did not come")
            draft.block(row)
        if self._blocks:
            self._store.commit(draft)
        census = self._contents.census()
        if difference := census.difference(self._manifest.census):
            raise Permanent(f"the count after the import is wrong: {difference} announced; nothing was kept")
        if broken := list(self._contents.broken_lines()):
            raise Permanent(
                f"the lines of ordered events contradict themselves: {', '.join(broken[:5])}; nothing was kept"
            )
        self._store.disk.sync_everything(self._store.layout.root)
        self._remove_note()
        return census

    def undo(self) -> None:
        """Remove everything that has come, and nothing else: people keep files of their own beside it."""
        self._note()
        try:
            for path in chain(self._contents.event_files(), self._files):
                self._store.disk.unlink(path)
        finally:
            self._store.skip_to(self._store.journal.end + 1)
        self._remove_note()

    def _note(self) -> None:
        self._store.disk.create(self._store.layout.unfinished_import, b"")
        self._store.disk.sync_directory(self._store.layout.bus)

    def _remove_note(self) -> None:
        self._store.disk.unlink(self._store.layout.unfinished_import)
        self._store.disk.sync_directory(self._store.layout.bus)

    def _files_of(self, draft: Draft) -> Iterator[str]:
        layout, entry = self._store.layout, draft.entry
        for lines in {layout.done(ended.stream, ended.day) for ended in entry.ended}:
            yield from (lines, index_of(lines))
        yield from (layout.record(stored.directory, stored.card.id) for stored in entry.records)
        yield from (layout.once_key(scope, key) for scope, key, _ in entry.once)
        yield from (layout.pause(pause.stream) for pause in entry.pauses)
        if draft.said:
            yield layout.log

    def _add_event(self, draft: Draft, event: EventItem) -> None:
        book, event_id = draft.books.stream(event.stream), str(event.envelope.get("eventId"))
        if event.position in book.rows or (event.status in ("PENDING", "DEAD") and event_id in book.by_event):
            raise comes_twice(f"event {event_id} of {event.stream}")
        body = body_of(Envelope.from_wire(event.envelope), event.stream)
        row = row_of(event, event_id)
        if event.status in ("DONE", "DISCARDED"):
            day = f"{event.processed_at:%Y%m%d}"
            line = ended_line(draft.place, row, event.status, body)
            draft.entry.ended.append(Ended(event.stream, event.position, event_id, day, line, event.event_id_given))
            draft.before[event.position] = None
        else:
            draft.take_in(row, body)


def _refuse_twice(seen: set[tuple[str, str, str]], what: str, group: str, name: str) -> None:
    if (what, group, name) in seen:
        raise comes_twice(f"{what} {name} of {group}")
    seen.add((what, group, name))


async def _batches(holding: _Holding, items: Iterator[AnyItem]) -> AsyncIterator[AnyItem]:
    while batch := await holding.run(lambda: list(islice(items, _BATCH))):
        for item in batch:
            yield item


async def _grouped(items: AsyncIterable[AnyItem]) -> AsyncIterator[list[AnyItem]]:
    batch: list[AnyItem] = []
    async for item in items:
        batch.append(item)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
