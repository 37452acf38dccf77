"""One store: the lock, the journal, the books and the files, held together. Blocking; the bus calls it from a thread.

A transaction is decided on the books, written to the journal (the commit point), then shown in the files. Whoever
takes the lock next finishes what a dead holder has left undone.
"""

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import structlog

from kingdom.backends.files.index.event_index import Books
from kingdom.backends.files.index.index_reader import empty_books, lease_tokens, read_books
from kingdom.backends.files.index.known_kinds import remember_kinds
from kingdom.backends.files.index.record_index import Shelf
from kingdom.backends.files.journal.entry import Entry, Row
from kingdom.backends.files.journal.journal import Behind, Journal
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.faults import remedy, translated
from kingdom.backends.files.system.host import boot_clock, boot_id, refuse_other_host, refuse_remote
from kingdom.backends.files.system.lock import Busy, Lock
from kingdom.backends.files.transaction_plan import Draft
from kingdom.backends.files.tree.layout import Layout
from kingdom.backends.files.tree.log import log_part
from kingdom.backends.files.tree.replay import Replay
from kingdom.backends.files.tree.tree import Tree
from kingdom.bus.delivery import Delivery
from kingdom.bus.record import RecordKind
from kingdom.errors import MalformedEvent, Misconfigured, NotFound, Unavailable

SEGMENT_BYTES = 16 << 20
# So much of the journal is read in passing.
_NEAR_BYTES = 64 << 10
# Less is no reason to read anything again.
_SET_BACK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Store:
    """Everything below one root; every method that is not private holds the lock by itself."""

    def __init__(self, root: str, kinds: Mapping[str, RecordKind], disk: Disk | None = None) -> None:
        self.layout = Layout(root)
        self.layout.check(kinds.values())
        self.kinds = dict(kinds)
        self.disk = disk or Disk()
        self.tree = Tree(self.layout, self.disk)
        self.journal = Journal(self.layout.journal, self.disk)
        self.books = empty_books(self.tree)
        self.shelf = Shelf(self.tree, kinds)
        self.boot = boot_id()
        # What this process has claimed, so that ending it need not read it again.
        self.bodies: dict[int, msgspec.Raw] = {}
        self._mutex = threading.RLock()
        self._lock: Lock | None = None
        self._checkpoint: threading.Thread | None = None
        self._is_stale = False
        # By how much the clock of the world is ahead of the one that nobody sets.
        self._clock_ahead = -math.inf

    def open(self, *, create: bool = True) -> None:
        """Make what is missing, refuse what cannot work, and finish what a crash has left undone."""
        if not create and not os.path.isdir(self.layout.bus):
            raise NotFound(f"there is no store at {self.layout.root}")
        with translated():
            for directory in (self.layout.root, *self.layout.fixed_directories()):
                self.disk.make_directory(directory)
            refuse_remote(self.layout.root)
            self._lock = Lock(self.layout.lock)
        try:
            with translated(), self._mutex, self._held():
                refuse_other_host(self.layout.host, self.disk)
                self._refuse_unfinished_import()
                self.kinds = remember_kinds(self.tree, self.kinds)
                self._begin(self._lock)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of every file."""
        if self._checkpoint:
            self._checkpoint.join()
        with self._mutex:
            self.journal.close()
            if self._lock:
                self._lock.close()
                self._lock = None

    @contextmanager
    def exclusive(self, *, wait: bool = True) -> Iterator[Draft]:
        """Hold the store alone, with books that are true now; the draft is where the next entry would stand.

        Raises Busy where it must not `wait`, and somebody holds the store or has left more to do than to read a little.
        """
        with translated(), self._entered(wait=wait), self._held(wait=wait):
            if not self._is_current():
                if not wait and not self._is_near():
                    raise Busy
                self._catch_up()
            self._follow_clock()
            draft = self.draft()
            try:
                yield draft
            except BaseException:
                if draft.before or draft.entry != Entry():
                    # The books may be ahead of what was written.
                    self._forget()
                raise

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the store against writers, with books that are true now."""
        with translated(), self._mutex:
            with self._held(shared=True):
                if self._is_current():
                    yield
                    return
            with self._held():
                self._catch_up()
                yield

    def draft(self) -> Draft:
        """Return where the next entry would stand, for who holds the store."""
        self.books.now = time.time()
        return Draft(self.books, self.journal.end, self.books.now, self.boot)

    def owned(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that are still in flight under their token."""
        with self.exclusive():
            return [d for d in deliveries if self.books.owns(d.stream, d.position, d.token)]

    def owned_now(self, deliveries: Sequence[Delivery]) -> list[Delivery] | None:
        """Return the same without waiting for anybody; None where that cannot be known."""
        with suppress(Busy), self._entered(wait=False):
            # The page says whether anybody has written since this process looked last.
            current = self._lock is not None and not self._is_stale and self._lock.applied == self.journal.end
            if current and all(map(self.books.knows, {d.stream for d in deliveries})):
                return [d for d in deliveries if self.books.owns(d.stream, d.position, d.token)]
        return None

    def commit(self, draft: Draft, *, durable: bool = True, wait: bool = True) -> None:
        """Write an entry and show it in the files; from the journal on it cannot be taken back.

        Who must not `wait` leaves a full segment of the journal to the next one who may.
        """
        entry, lock = self._complete(draft), self._opened()
        files = self.tree.render(entry)
        # A line that a loss of power takes back would come a second time, under the same number.
        durable = durable or entry.log is not None or bool(entry.ended)
        entry.synced = lock.synced
        try:
            self.journal.append(entry, durable=durable)
        except BaseException:
            # The books are ahead of what was written.
            self._forget()
            raise
        if durable:
            lock.synced = self.journal.end
        self.shelf.follow(entry)
        try:
            self.tree.apply(entry, draft.before, files)
        except OSError as error:
            # It is committed all the same: whoever comes next, we too, replays it first.
            _log.warning("files not written yet, they follow from the journal", error=str(error))
            self._forget()
            return
        lock.applied = self.journal.end
        if wait and self.journal.size > SEGMENT_BYTES:
            try:
                self._begin_checkpoint(lock)
            except OSError as error:
                _log.warning("checkpoint not begun, the next commit will try", error=str(error))

    def body(self, row: Row) -> msgspec.Raw:
        """Return an event that is about to end, as JSON."""
        known = self.bodies.pop(row.position, None)
        try:
            return known if known is not None else self.tree.read_event(row)[1]
        except (FileNotFoundError, MalformedEvent) as error:
            # A person has damaged or removed its file while it ran: what it was does not matter for what it did.
            _log.warning("the file of an event cannot be read at its end", position=row.position, error=str(error))
            return msgspec.Raw(msgspec.json.encode({"eventId": row.event_id, "stream": row.stream}))

    def skip_to(self, place: int) -> None:
        """Go on at a later place of the journal, for who holds the store; all others look at the files anew."""
        lock = self._opened()
        # First of all: whatever lies before a gap in the journal counts as being on disk for good.
        self.disk.sync_everything(self.layout.root)
        lock.segment = place
        self.journal.open(place)
        lock.applied = place
        self.journal.forget_before(place)
        self._forget()

    def look_again(self, stream: str) -> None:
        """Read a stream anew where a file of it can be read again that could not be, for who holds the store."""
        book = self.books.stream(stream)
        if any(self.tree.body(book.rows[position]) is not None for position in book.unreadable):
            self.books.close_stream(stream)

    def stream_names(self) -> list[str]:
        """Return the names of all streams that ever had an event."""
        return self.layout.stream_names()

    def read_books(self) -> Books:
        """Return books that know nothing but the files, for who holds the store."""
        return read_books(self.tree)

    def checkpoint(self) -> None:
        """Make everything in the files last, and forget the journal before."""
        if self._checkpoint:
            self._checkpoint.join()
        with translated(), self._mutex, self._held():
            self._catch_up()
            self._begin_checkpoint(self._opened())
        if self._checkpoint:
            self._checkpoint.join()

    @contextmanager
    def _entered(self, *, wait: bool) -> Iterator[None]:
        """Keep the other threads of this process out."""
        if not self._mutex.acquire(blocking=wait):
            raise Busy
        try:
            yield
        finally:
            self._mutex.release()

    @contextmanager
    def _held(self, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Keep other processes out, or only those that write; the next holder mends what is wrong with the journal."""
        lock = self._opened()
        with lock.held(shared=shared, wait=wait):
            try:
                yield
            finally:
                if self.journal.doubtful:
                    lock.doubtful, self.journal.doubtful = self.journal.doubtful, 0

    def _refuse_unfinished_import(self) -> None:
        if os.path.exists(self.layout.unfinished_import):
            raise Misconfigured(
                f"an import into {self.layout.root} was never finished: remove the directory, and import again"
            )

    def _begin(self, lock: Lock) -> None:
        segments = self.journal.segments()
        if not segments:
            # Positions must never come twice, also where somebody has removed the journal of an old store.
            start = time.time_ns() // 1000 if os.listdir(self.layout.streams) else 1
            self.journal.open(start)
            # The root itself too, and whatever was made above it.
            self.disk.sync_everything(self.layout.root)
            lock.segment = lock.applied = lock.synced = start
        elif lock.boot != self.boot or not self.boot or lock.segment not in segments:
            self._recover(segments, after=0, thorough=True)
            lock.segment, lock.applied = self.journal.start, self.journal.end
            # What was not on disk is not there any more either.
            lock.doubtful = 0
        lock.boot = self.boot
        self.journal.open(lock.segment)
        self._forget()
        self._catch_up()

    def _follow_clock(self) -> None:
        """Read all streams again where the clock was set back: what it made due would wait for longer than it must."""
        ahead = time.time() - boot_clock()
        if ahead < self._clock_ahead - _SET_BACK_SECONDS:
            _log.warning("the clock was set back", seconds=round(self._clock_ahead - ahead))
            self.books.close_all()
        self._clock_ahead = ahead

    def _is_current(self) -> bool:
        """Tell whether this process knows all that was written, and all of that is in the files."""
        journal, lock = self.journal, self._opened()
        is_sound = not (self._is_stale or lock.doubtful)
        return is_sound and lock.places == (journal.start, journal.end) and journal.written() == journal.end

    def _is_near(self) -> bool:
        """Tell whether there is only a little to read of what others have finished, with no file to be synced."""
        journal, lock = self.journal, self._opened()
        (segment, applied), is_sound = lock.places, not (self._is_stale or lock.doubtful)
        return is_sound and segment == journal.start and journal.written() == applied <= journal.end + _NEAR_BYTES

    def _catch_up(self) -> None:
        """Finish what a dead holder has begun, and read what others have written."""
        lock = self._opened()
        segment, applied = lock.places
        if segment == self.journal.start and self.journal.written() is None:
            # Another process could not sync it and has written it anew.
            self.journal.reopen()
        if self._is_stale:
            self._forget()
        self.books.now = time.time()
        try:
            for _, entry in self.journal.follow(applied):
                self.books.follow(entry)
                self.shelf.follow(entry)
                for row in entry.rows:
                    # Ours no more, if it ever was: somebody else moves it now.
                    self.bodies.pop(row.position, None)
        except Behind:
            self._refuse_unfinished_import()
            self.journal.open(segment)
            self._forget()
        if self.journal.start != segment:
            # Whoever has read the old segment to its end only turns the page.
            at_the_turn = self.journal.end == segment
            self.journal.open(segment)
            if not at_the_turn:
                self._refuse_unfinished_import()
                self._forget()
        if lock.doubtful:
            self.journal.write_anew(lock.doubtful)
            lock.synced, lock.doubtful = lock.doubtful, 0
        if self.journal.written() != applied:
            # A holder died between its entry and its files, or while it wrote; or it could not write them.
            self._recover([s for s in self.journal.segments() if s >= segment], after=applied, thorough=False)
            lock.segment, lock.applied = self.journal.start, self.journal.end
            self._forget()

    def _recover(self, segments: list[int], *, after: int, thorough: bool) -> None:
        entries: list[tuple[int, Entry]] = []
        for start in segments:
            if start != self.journal.end:
                # A gap: the segments before it were on their way out, and their removal was partly lost.
                entries.clear()
            entries += self.journal.recover(start, after)
        self.journal.sync()
        self._opened().synced = self.journal.end
        try:
            Replay(self.tree, entries).run(thorough=thorough)
        except OSError as error:
            raise Unavailable(f"the store cannot be brought up to date ({error}): {remedy(error)}") from error
        if thorough:
            # A claim that was not in the journal in time has never been.
            for token in lease_tokens(self.layout):
                if token >= self.journal.end:
                    self.disk.unlink(self.layout.lease(token))
            self.disk.sync_everything(self.layout.root)
        _log.info("replayed", entries=len(entries), after_power_loss=thorough)

    def _complete(self, draft: Draft) -> Entry:
        """Return the entry with its lines of the log, and with what every file holds that it writes anew.

        The file before may be all there is of that, and it goes.
        """
        entry = draft.finish()
        if draft.said:
            first = self.books.log_sequence + 1
            entry.log = log_part(self.layout, draft.said, first=first, place=draft.place, now=draft.now)
            self.books.log_sequence += len(draft.said)
        for row in entry.rows:
            if row.position not in draft.quiet and row.position not in entry.bodies:
                self.bodies.pop(row.position, None)
                if (body := self.tree.body(draft.before[row.position] or row)) is not None:
                    entry.bodies[row.position] = body
        return entry

    def _begin_checkpoint(self, lock: Lock) -> None:
        """Turn to a new segment; the old ones go when everything they tell is on disk for good, which takes a while."""
        if self._checkpoint and self._checkpoint.is_alive():
            return
        start = self.journal.end
        self.journal.sync()
        lock.synced = start
        # The page first: a segment that nobody names would be overlooked, one that is missing is made.
        lock.segment = start
        self.journal.open(start)

        def finish() -> None:
            try:
                self.disk.sync_everything(self.layout.root)
                self.journal.forget_before(start)
            except OSError as error:
                _log.warning("checkpoint not finished, the next one will be", error=str(error))

        self._checkpoint = threading.Thread(target=finish, name="kingdom-checkpoint")
        self._checkpoint.start()

    def _forget(self) -> None:
        """Read everything anew from the files, when it is next asked for."""
        # Until it is done: a disk that fails in between must not leave books that are ahead of it.
        self._is_stale = True
        self.tree.forget_directories()
        self.bodies.clear()
        self.books = self.read_books()
        self.shelf = Shelf(self.tree, self.kinds)
        self.journal.end = self._opened().applied
        self._is_stale = False

    def _opened(self) -> Lock:
        if self._lock is None:
            raise Unavailable("the store is closed")
        return self._lock
