"""One store: the lock, the journal, the index and the files together. All calls block, so the bus uses a thread.

A transaction is planned with the index, written to the journal (the commit point) and then applied to the files. If the
holder of the lock dies, the next holder finishes its work.
"""

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import structlog

from kingdom.backends.files.index.event_index import EventIndex
from kingdom.backends.files.index.index_reader import empty_event_index, lease_tokens, load_events
from kingdom.backends.files.index.known_kinds import remember_kinds
from kingdom.backends.files.index.record_index import RecordIndex
from kingdom.backends.files.journal.entry import EventRow, JournalEntry
from kingdom.backends.files.journal.journal import Journal, SegmentGone
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.faults import suggest_remedy, translate_errors
from kingdom.backends.files.system.host import boot_clock, boot_id, refuse_other_host, refuse_remote
from kingdom.backends.files.system.lock import StoreBusy, StoreLock
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.layout import StoreLayout
from kingdom.backends.files.tree.log import build_log_lines
from kingdom.backends.files.tree.replay import Replay
from kingdom.backends.files.tree.tree import FileTree
from kingdom.bus.delivery import Delivery
from kingdom.bus.record import RecordKind
from kingdom.errors import MalformedEvent, Misconfigured, NotFound, Unavailable

# When a journal segment is larger than this, a checkpoint starts a new segment.
SEGMENT_BYTES = 16 << 20
# A caller that must not wait reads at most this many bytes of the journal.
_NONBLOCKING_BYTES = 64 << 10
# If the clock is set back by less than this, nothing is done.
_SET_BACK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Store:
    """Everything below one root directory."""

    def __init__(self, root: str, kinds: Mapping[str, RecordKind], disk: Disk | None = None) -> None:
        self.layout = StoreLayout(root)
        self.layout.check_kinds(kinds.values())
        self.kinds = dict(kinds)
        self.disk = disk or Disk()
        self.tree = FileTree(self.layout, self.disk)
        self.journal = Journal(self.layout.journal, self.disk)
        self.events = empty_event_index(self.tree)
        self.records = RecordIndex(self.tree, kinds)
        self.boot = boot_id()
        # The bodies of the events that this process has claimed, to archive them without reading their files again.
        self.bodies: dict[int, msgspec.Raw] = {}
        self._mutex = threading.RLock()
        self._lock: StoreLock | None = None
        self._checkpoint: threading.Thread | None = None
        # True if the index may differ from the files and must be loaded again.
        self._must_reload = False
        # How many seconds the wall clock is ahead of the boot clock. The boot clock is never set.
        self._clock_ahead = -math.inf

    def open(self, *, create: bool = True) -> None:
        """Open or create the store, check that it can be used here, and recover from a crash."""
        if not create and not os.path.isdir(self.layout.bus):
            raise NotFound(f"there is no store at {self.layout.root}")
        with translate_errors():
            for directory in (self.layout.root, *self.layout.fixed_directories()):
                self.disk.make_directory(directory)
            refuse_remote(self.layout.root)
            self._lock = StoreLock(self.layout.lock)
        try:
            with translate_errors(), self._mutex, self._hold_lock():
                refuse_other_host(self.layout.host, self.disk)
                self._refuse_unfinished_import()
                self.kinds = remember_kinds(self.tree, self.kinds)
                self._start(self._lock)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every file."""
        if self._checkpoint:
            self._checkpoint.join()
        with self._mutex:
            self.journal.close()
            if self._lock:
                self._lock.close()
                self._lock = None

    @contextmanager
    def exclusive(self, *, wait: bool = True) -> Iterator[TransactionPlan]:
        """Hold the store, update the index, and yield a plan. If `wait` is false, raise StoreBusy rather than wait."""
        with translate_errors(), self._exclude_threads(wait=wait), self._hold_lock(wait=wait):
            if not self._is_current():
                if not wait and not self._is_nearly_current():
                    raise StoreBusy
                self._catch_up()
            self._reload_if_clock_set_back()
            plan = self.new_plan()
            try:
                yield plan
            except BaseException:
                if plan.before or plan.entry != JournalEntry():
                    # The index may have changes that are not in the journal.
                    self._reload()
                raise

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep writers out of the store during the block, and update the index first."""
        with translate_errors(), self._mutex:
            with self._hold_lock(shared=True):
                if self._is_current():
                    yield
                    return
            with self._hold_lock():
                self._catch_up()
                yield

    def new_plan(self) -> TransactionPlan:
        """Return a plan for the next journal entry. The caller holds the store."""
        self.events.now = time.time()
        return TransactionPlan(self.events, self.journal.end, self.events.now, self.boot)

    def filter_owned(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that are still in flight under their token."""
        with self.exclusive():
            return [d for d in deliveries if self.events.owns(d.stream, d.position, d.token)]

    def filter_owned_now(self, deliveries: Sequence[Delivery]) -> list[Delivery] | None:
        """Do the same as `filter_owned` without waiting. Return None if that is not possible."""
        with suppress(StoreBusy), self._exclude_threads(wait=False):
            # `applied` is stored in the lock file. It tells whether another process has written meanwhile.
            current = self._lock is not None and not self._must_reload and self._lock.applied == self.journal.end
            if current and all(map(self.events.is_loaded, {d.stream for d in deliveries})):
                return [d for d in deliveries if self.events.owns(d.stream, d.position, d.token)]
        return None

    def commit(self, plan: TransactionPlan, *, durable: bool = True, wait: bool = True) -> None:
        """Write the entry of a plan to the journal, and apply it. If `wait` is false, start no checkpoint."""
        entry, lock = self._complete_entry(plan), self._require_lock()
        files = self.tree.render(entry)
        # Sync the lines of the log and the archive. If a power loss removed a line, its number would be used again.
        durable = durable or entry.log is not None or bool(entry.ended)
        entry.synced = lock.synced
        try:
            self.journal.append(entry, durable=durable)
        except BaseException:
            # The index has changes that are not in the journal.
            self._reload()
            raise
        if durable:
            lock.synced = self.journal.end
        self.records.apply(entry)
        try:
            self.tree.apply(entry, plan.before, files)
        except OSError as error:
            # The entry is committed. The next holder of the lock replays it first.
            _log.warning("files not written; the next transaction replays them from the journal", error=str(error))
            self._reload()
            return
        lock.applied = self.journal.end
        if wait and self.journal.size > SEGMENT_BYTES:
            try:
                self._begin_checkpoint(lock)
            except OSError as error:
                _log.warning("checkpoint not started; the next commit tries again", error=str(error))

    def take_body(self, row: EventRow) -> msgspec.Raw:
        """Return the JSON of an event that is about to end, and remove it from `bodies`."""
        known = self.bodies.pop(row.position, None)
        try:
            return known if known is not None else self.tree.read_event(row)[1]
        except (FileNotFoundError, MalformedEvent) as error:
            # The file was damaged or removed while the event ran. The outcome still counts.
            _log.warning("cannot read the file of an event that has ended", position=row.position, error=str(error))
            return msgspec.Raw(msgspec.json.encode({"eventId": row.event_id, "stream": row.stream}))

    def skip_to(self, offset: int) -> None:
        """Continue the journal at a later offset, so that all other processes reload. The caller holds the store."""
        lock = self._require_lock()
        # Sync first, because recovery assumes that everything before a gap in the journal is synced.
        self.disk.sync_everything(self.layout.root)
        lock.segment = offset
        self.journal.open(offset)
        lock.applied = offset
        self.journal.remove_before(offset)
        self._reload()

    def reload_if_readable(self, stream: str) -> None:
        """Reload a stream after an unreadable file becomes readable. The caller holds the store."""
        index = self.events.stream(stream)
        if any(self.tree.read_body(index.rows[position]) is not None for position in index.unreadable):
            self.events.unload(stream)

    def stream_names(self) -> list[str]:
        """Return the names of all streams that ever had an event."""
        return self.layout.stream_names()

    def load_events(self) -> EventIndex:
        """Return a new index, loaded only from the files. The caller holds the store."""
        return load_events(self.tree)

    def checkpoint(self) -> None:
        """Sync all files, and remove the journal segments that are no longer needed."""
        if self._checkpoint:
            self._checkpoint.join()
        with translate_errors(), self._mutex, self._hold_lock():
            self._catch_up()
            self._begin_checkpoint(self._require_lock())
        if self._checkpoint:
            self._checkpoint.join()

    @contextmanager
    def _exclude_threads(self, *, wait: bool) -> Iterator[None]:
        """Keep the other threads of this process out during the block."""
        if not self._mutex.acquire(blocking=wait):
            raise StoreBusy
        try:
            yield
        finally:
            self._mutex.release()

    @contextmanager
    def _hold_lock(self, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Keep other processes out during the block, or only writers if `shared`."""
        lock = self._require_lock()
        with lock.held(shared=shared, wait=wait):
            try:
                yield
            finally:
                # After a failed sync, the next holder of the lock rewrites the segment.
                if self.journal.rewrite_up_to:
                    lock.rewrite_up_to, self.journal.rewrite_up_to = self.journal.rewrite_up_to, 0

    def _refuse_unfinished_import(self) -> None:
        if os.path.exists(self.layout.unfinished_import):
            raise Misconfigured(
                f"an import into {self.layout.root} did not finish: remove the directory, then import again"
            )

    def _start(self, lock: StoreLock) -> None:
        segments = self.journal.segments()
        if not segments:
            # If streams exist, their journal was removed. Begin at a high offset, so that no old position is reused.
            start = time.time_ns() // 1000 if os.listdir(self.layout.streams) else 1
            self.journal.open(start)
            # This also syncs the root directory and its new parents.
            self.disk.sync_everything(self.layout.root)
            lock.segment = lock.applied = lock.synced = start
        elif lock.boot != self.boot or not self.boot or lock.segment not in segments:
            self._recover(segments, after=0, thorough=True)
            lock.segment, lock.applied = self.journal.start, self.journal.end
            # No rewrite is needed: after a reboot, everything that can be read is on the disk.
            lock.rewrite_up_to = 0
        lock.boot = self.boot
        self.journal.open(lock.segment)
        self._reload()
        self._catch_up()

    def _reload_if_clock_set_back(self) -> None:
        """If the clock was set back, reload all streams: loading adjusts the due times of events to the new clock."""
        ahead = time.time() - boot_clock()
        if ahead < self._clock_ahead - _SET_BACK_SECONDS:
            _log.warning("the clock was set back", seconds=round(self._clock_ahead - ahead))
            self.events.unload_all()
        self._clock_ahead = ahead

    def _is_current(self) -> bool:
        """Return whether this process has read the whole journal, and the whole journal is applied to the files."""
        journal, lock = self.journal, self._require_lock()
        needs_repair = self._must_reload or lock.rewrite_up_to
        is_read = lock.offsets == (journal.start, journal.end)
        return not needs_repair and is_read and journal.end_on_disk() == journal.end

    def _is_nearly_current(self) -> bool:
        """Return whether `_catch_up` only has to read a small part of the journal, without any sync."""
        journal, lock = self.journal, self._require_lock()
        segment, applied = lock.offsets
        needs_repair = segment != journal.start or self._must_reload or lock.rewrite_up_to
        return not needs_repair and journal.end_on_disk() == applied <= journal.end + _NONBLOCKING_BYTES

    def _catch_up(self) -> None:
        """Read the journal entries of other processes. If a process died while it held the lock, finish its work."""
        lock = self._require_lock()
        segment, applied = lock.offsets
        if segment == self.journal.start and self.journal.end_on_disk() is None:
            # Another process has rewritten the segment after a failed sync.
            self.journal.reopen()
        if self._must_reload:
            self._reload()
        self.events.now = time.time()
        try:
            for _, entry in self.journal.read_until(applied):
                self.events.apply(entry)
                self.records.apply(entry)
                for row in entry.rows:
                    # Another process has changed this event.
                    self.bodies.pop(row.position, None)
        except SegmentGone:
            self._refuse_unfinished_import()
            self.journal.open(segment)
            self._reload()
        if self.journal.start != segment:
            # If the old segment was read to its end, the index is complete.
            is_complete = self.journal.end == segment
            self.journal.open(segment)
            if not is_complete:
                self._refuse_unfinished_import()
                self._reload()
        if lock.rewrite_up_to:
            self.journal.rewrite(lock.rewrite_up_to)
            lock.synced, lock.rewrite_up_to = lock.rewrite_up_to, 0
        if self.journal.end_on_disk() != applied:
            # An earlier holder of the lock has written to the journal, but not applied everything to the files.
            self._recover([s for s in self.journal.segments() if s >= segment], after=applied, thorough=False)
            lock.segment, lock.applied = self.journal.start, self.journal.end
            self._reload()

    def _recover(self, segments: list[int], *, after: int, thorough: bool) -> None:
        """Replay the journal from offset `after`. `thorough` is for a reboot, after which unsynced data may be lost."""
        entries: list[tuple[int, JournalEntry]] = []
        for start in segments:
            if start != self.journal.end:
                # A gap: a checkpoint removed all earlier segments, but a power loss came before some removals were
                # synced. The changes in these segments were synced before, so they need no replay.
                entries.clear()
            entries += self.journal.recover(start, after)
        self.journal.sync()
        self._require_lock().synced = self.journal.end
        try:
            Replay(self.tree, entries).run(thorough=thorough)
        except OSError as error:
            raise Unavailable(f"cannot replay the journal ({error}): {suggest_remedy(error)}") from error
        if thorough:
            # Remove the lease files of claims that are no longer in the journal.
            for token in lease_tokens(self.layout):
                if token >= self.journal.end:
                    self.disk.unlink(self.layout.lease(token))
            self.disk.sync_everything(self.layout.root)
        _log.info("journal replayed", entries=len(entries), after_power_loss=thorough)

    def _complete_entry(self, plan: TransactionPlan) -> JournalEntry:
        """Add the log lines to the entry, and the body of every event file that is rewritten, for recovery."""
        entry = plan.finish()
        if plan.log_entries:
            first = self.events.log_sequence + 1
            entry.log = build_log_lines(self.layout, plan.log_entries, first=first, offset=plan.offset, now=plan.now)
            self.events.log_sequence += len(plan.log_entries)
        for row in entry.rows:
            if row.position not in plan.unchanged_files and row.position not in entry.bodies:
                self.bodies.pop(row.position, None)
                if (body := self.tree.read_body(plan.before[row.position] or row)) is not None:
                    entry.bodies[row.position] = body
        return entry

    def _begin_checkpoint(self, lock: StoreLock) -> None:
        """Start a new segment, and remove the old ones in the background after everything is synced."""
        if self._checkpoint and self._checkpoint.is_alive():
            return
        start = self.journal.end
        self.journal.sync()
        lock.synced = start
        # Write the lock file before the segment. If this process dies in between, the next process creates the segment.
        # In the other order, the next process would not know the new segment.
        lock.segment = start
        self.journal.open(start)

        def finish() -> None:
            try:
                self.disk.sync_everything(self.layout.root)
                self.journal.remove_before(start)
            except OSError as error:
                _log.warning("checkpoint not finished; the next one tries again", error=str(error))

        self._checkpoint = threading.Thread(target=finish, name="kingdom-checkpoint")
        self._checkpoint.start()

    def _reload(self) -> None:
        """Load the index again from the files. Streams and records are loaded when they are first used."""
        # If the disk fails during the reload, the next holder of the store must reload again.
        self._must_reload = True
        self.tree.forget_directories()
        self.bodies.clear()
        self.events = self.load_events()
        self.records = RecordIndex(self.tree, self.kinds)
        self.journal.end = self._require_lock().applied
        self._must_reload = False

    def _require_lock(self) -> StoreLock:
        if self._lock is None:
            raise Unavailable("the store is closed")
        return self._lock
