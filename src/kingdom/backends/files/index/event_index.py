"""What one process knows of the events: an index over the files, kept true by reading the journal.

Nothing here is written down: it is read from the directories once and follows every entry from then on, so that no
claim ever lists a directory.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from kingdom.backends.files.journal.entry import (
    DAMAGED,
    DEAD,
    PENDING,
    PROCESSING,
    UNREADABLE,
    Entry,
    Lease,
    Pause,
    Row,
)

Loader = Callable[[str], Iterable[Row]]
# The heap of due times keeps what is outdated until it comes up; beyond this share it is made anew.
_STALE_SHARE = 4
_HEAP_MIN = 1000


class Line:
    """The open events of one key in order; one of them, the head, has a time at which it may be claimed."""

    __slots__ = ("blocked_by", "flying", "head", "open")

    def __init__(self) -> None:
        self.open: deque[int] = deque()
        self.flying = 0
        self.head: int | None = None
        self.blocked_by: int | None = None


class StreamBook:
    """The events of one stream that are open or DEAD."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[int, Row] = {}
        self.by_event: dict[str, int] = {}
        self.lines: dict[str, Line] = {}
        self.counts: Counter[str] = Counter()
        self.dead: set[int] = set()
        # Files that could not be read when the book was opened, so that nobody knows which line they stand in.
        self.unreadable: set[int] = set()
        self._due: list[tuple[float, int]] = []

    def place(self, row: Row) -> None:
        """Note how an event stands now."""
        old = self.rows.get(row.position)
        self.rows[row.position] = row
        if old is None:
            self.by_event[row.event_id] = row.position
        else:
            self.counts[old.status] -= 1
        self.counts[row.status] += 1
        if row.status == DEAD:
            self.dead.add(row.position)
            self.unreadable.discard(row.position)
        elif old is not None and old.status == DEAD:
            self.dead.discard(row.position)
        if row.status == PENDING and row.due is not None:
            heappush(self._due, (row.due, row.position))
            self._prune()
        if row.key is not None:
            self._stand(row.key, old, row)

    def remove(self, position: int) -> None:
        """Forget an event that has ended."""
        old = self.rows.pop(position, None)
        if old is None:
            return
        if self.by_event.get(old.event_id) == position:
            del self.by_event[old.event_id]
        self.counts[old.status] -= 1
        self.dead.discard(position)
        self.unreadable.discard(position)
        if old.key is not None:
            self._stand(old.key, old, None)

    def take_due(self, now: float, limit: int) -> list[Row]:
        """Return what may be claimed, by time and place, and take it out: `put_back` what is not claimed."""
        heap, last = self._due, None
        found: list[Row] = []
        while heap and heap[0][0] <= now and len(found) < limit:
            due, position = heappop(heap)
            row = self.rows.get(position)
            # What has changed since is not due any more, and the same time may have been noted twice.
            if row is not None and row.due == due and row.status == PENDING and position != last:
                found.append(row)
                last = position
        return found

    def _prune(self) -> None:
        """Drop what is outdated once it is most of the heap: who only publishes would never come across it."""
        if len(self._due) > max(_HEAP_MIN, _STALE_SHARE * self.counts[PENDING]):
            self._due = [(r.due, r.position) for r in self.rows.values() if r.status == PENDING and r.due is not None]
            heapify(self._due)

    def put_back(self, rows: Iterable[Row]) -> None:
        """Let rows be found again that were taken out and have not changed since."""
        for row in rows:
            if row.due is not None and self.rows.get(row.position) is row:
                heappush(self._due, (row.due, row.position))

    def oldest_due(self, now: float) -> Row | None:
        """Return what would be claimed next."""
        found = self.take_due(now, 1)
        self.put_back(found)
        return found[0] if found else None

    def run_from(self, head: Row, limit: int, now: float) -> list[Row]:
        """Return the head of a line with the followers that can be handled right after it."""
        if head.key is None or limit <= 1 or head.crash_count:
            return [head]
        line = self.lines[head.key]
        start = 0 if line.open[0] == head.position else line.open.index(head.position)
        run = [head]
        for index in range(start + 1, min(start + limit, len(line.open))):
            row = self.rows[line.open[index]]
            if row.status != PENDING or row.crash_count or (row.not_before or 0) > now:
                break
            run.append(row)
        return run

    def next_head(self, key: str) -> Row | None:
        """Return the event that must become the head of a line which has none: of a run in flight, else the first."""
        line = self.lines.get(key)
        if line is None or line.head is not None or line.blocked_by is not None or not line.open:
            return None
        if line.flying:
            return next(row for p in line.open if (row := self.rows[p]).status == PROCESSING)
        return self.rows[line.open[0]]

    def _stand(self, key: str, old: Row | None, new: Row | None) -> None:
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line()
        position = (new or old).position  # type: ignore[union-attr]
        was, now = old is not None and old.status != DEAD, new is not None and new.status != DEAD
        if now and not was:
            _insert(line.open, position)
        elif was and not now:
            if line.open[0] == position:
                line.open.popleft()
            else:
                line.open.remove(position)
        line.flying += _flies(new) - _flies(old)
        if now and new is not None and new.due is not None:
            line.head = position
        elif line.head == position:
            line.head = None
        if new is not None and new.blocks:
            line.blocked_by = position
        elif line.blocked_by == position:
            line.blocked_by = None
        if not line.open and line.blocked_by is None:
            del self.lines[key]


class Books:
    """The books of all streams; a stream is opened when it is first asked for."""

    def __init__(self, load: Loader, now: float) -> None:
        self._load = load
        # By this moment what is read or followed counts as due.
        self.now = now
        self._streams: dict[str, StreamBook] = {}
        self.leases: dict[int, Lease] = {}
        self.flying: dict[int, set[int]] = {}
        self.pauses: dict[str, Pause] = {}
        self.log_sequence = 0

    def stream(self, name: str) -> StreamBook:
        """Return the book of a stream."""
        book = self._streams.get(name)
        if book is None:
            book = StreamBook(name)
            for row in sorted(self._load(name), key=lambda row: row.position):
                book.place(_by_this_clock(row, self.now))
                if row.error_code in (DAMAGED, UNREADABLE) and row.key is None and row.status == PENDING:
                    book.unreadable.add(row.position)
            # Promotions are not written into the files: they follow from the order.
            for key in list(book.lines):
                if (head := book.next_head(key)) is not None:
                    head.due = max(min(head.created_at, self.now), head.not_before or 0)
                    book.place(head)
            self._streams[name] = book
            for lease in self.leases.values():
                if lease.stream == name:
                    rows = (book.rows.get(position) for position in lease.positions)
                    # One that was given back early may be in flight again, under another lease.
                    self.flying[lease.token] = {
                        r.position for r in rows if r and r.status == PROCESSING and r.token == lease.token
                    }
        return book

    def knows(self, name: str) -> bool:
        """Tell whether a stream has been opened and all of it could be read, so that asking for it reads no file."""
        return name in self._streams and not self._streams[name].unreadable

    def owns(self, stream: str, position: int, token: int) -> bool:
        """Tell whether an event is in flight under this token."""
        row = self.stream(stream).rows.get(position)
        return row is not None and row.token == token and row.status == PROCESSING and token in self.leases

    def close_stream(self, name: str) -> None:
        """Forget a stream, so that its directories are read again."""
        self._streams.pop(name, None)

    def close_all(self) -> None:
        """Forget all streams."""
        self._streams.clear()

    def follow(self, entry: Entry) -> None:
        """Take in what another process has done."""
        for lease in entry.leases:
            self.hold(lease)
        for row in entry.rows:
            self.place(_by_this_clock(row, self.now))
        for ended in entry.ended:
            self.remove(ended.stream, ended.position)
        for stream, position in entry.vanished:
            self.remove(stream, position)
        for token in entry.closed:
            self.let_go(token)
        for pause in entry.pauses:
            self.pauses[pause.stream] = pause
        for stream in entry.resumed:
            self.pauses.pop(stream, None)
        if entry.log:
            self.log_sequence = entry.log.first + len(entry.log.lines) - 1

    def place(self, row: Row) -> None:
        """Note how an event stands now, if its stream is open here."""
        book = self._streams.get(row.stream)
        if book is not None:
            old = book.rows.get(row.position)
            if old is not None and old.status == PROCESSING and (row.status != PROCESSING or row.token != old.token):
                self._lands(old)
            book.place(row)

    def remove(self, stream: str, position: int) -> None:
        """Forget an event that has ended."""
        book = self._streams.get(stream)
        if book is not None:
            old = book.rows.get(position)
            if old is not None and old.status == PROCESSING:
                self._lands(old)
            book.remove(position)

    def _lands(self, row: Row) -> None:
        if (flying := self.flying.get(row.token)) is not None:
            flying.discard(row.position)

    def hold(self, lease: Lease) -> None:
        """Note a lease; one that is known already only changes what is cancelled in it."""
        if lease.token not in self.leases:
            self.flying[lease.token] = set(lease.positions)
        self.leases[lease.token] = lease

    def let_go(self, token: int) -> None:
        """Forget a lease."""
        self.leases.pop(token, None)
        self.flying.pop(token, None)


def _by_this_clock(row: Row, now: float) -> Row:
    """Return a row whose `due` was decided by a clock that has been set back since, with the same wait from now on."""
    decided = row.created_at if row.due_set_at is None and row.error_code is None else row.due_set_at
    if row.status != PENDING or row.due is None or decided is None or decided <= now:
        return row
    wait = max(row.due - decided, 0.0)
    # What a publisher has asked for stays.
    return replace(row, due=min(row.due, max(now + wait, row.not_before or 0)))


def _insert(positions: deque[int], position: int) -> None:
    if not positions or positions[-1] < position:
        positions.append(position)
    else:
        positions.insert(bisect_left(positions, position), position)


def _flies(row: Row | None) -> int:
    return row is not None and row.status == PROCESSING
