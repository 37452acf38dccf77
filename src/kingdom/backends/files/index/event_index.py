"""The index of events in the memory of one process.

A process reads the directories of a stream once, and then applies every later journal entry to the index. Therefore no
claim lists a directory.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from kingdom.backends.files.journal.entry import (
    DAMAGED,
    DEAD,
    FILE_PROBLEMS,
    PENDING,
    PROCESSING,
    UNREADABLE,
    EventRow,
    JournalEntry,
    Lease,
    StreamPause,
)

Loader = Callable[[str], Iterable[EventRow]]
# The heap of due times keeps outdated items until they reach its top. It is rebuilt when it has more items than this
# multiple of the pending events, and more than the minimum.
_HEAP_MAX_RATIO = 4
_HEAP_MIN_ITEMS = 1000


class KeyQueue:
    """The positions of the open events of one key. Only the event at `head` has a due time.

    `in_flight` counts the events under a lease, and `blocked_by` is the dead letter that blocks the key.
    """

    __slots__ = ("blocked_by", "head", "in_flight", "open")

    def __init__(self) -> None:
        self.open: deque[int] = deque()
        self.in_flight = 0
        self.head: int | None = None
        self.blocked_by: int | None = None


class StreamIndex:
    """The open and DEAD events of one stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[int, EventRow] = {}
        self.by_event: dict[str, int] = {}
        self.queues: dict[str, KeyQueue] = {}
        self.counts: Counter[str] = Counter()
        self.dead: set[int] = set()
        # Events whose file was unreadable when the stream was loaded. Their keys are not known.
        self.unreadable: set[int] = set()
        self._due: list[tuple[float, int]] = []

    def put(self, row: EventRow) -> None:
        """Store the current state of an event."""
        old = self.rows.get(row.position)
        self.rows[row.position] = row
        if old is None:
            self.by_event[row.event_id] = row.position
        else:
            self.counts[old.status] -= 1
        self.counts[row.status] += 1
        if row.status == DEAD:
            self.dead.add(row.position)
            self._end_unreadable(row.position)
        elif old is not None and old.status == DEAD:
            self.dead.discard(row.position)
        if row.status == PENDING and row.due is not None:
            heappush(self._due, (row.due, row.position))
            self._prune()
        if row.key is not None:
            self._update_queue(row.key, old, row)

    def remove(self, position: int) -> None:
        """Remove an event that has ended."""
        old = self.rows.pop(position, None)
        if old is None:
            return
        if self.by_event.get(old.event_id) == position:
            del self.by_event[old.event_id]
        self.counts[old.status] -= 1
        self.dead.discard(position)
        self._end_unreadable(position)
        if old.key is not None:
            self._update_queue(old.key, old, None)

    def pop_due(self, now: float, limit: int) -> list[EventRow]:
        """Take the due events from the heap, ordered by time and position. The caller puts unclaimed events back."""
        heap, last = self._due, None
        found: list[EventRow] = []
        while heap and heap[0][0] <= now and len(found) < limit:
            due, position = heappop(heap)
            row = self.rows.get(position)
            # Skip outdated items: the event may have changed, and the heap may contain it twice.
            if row is not None and row.due == due and row.status == PENDING and position != last:
                found.append(row)
                last = position
        return found

    def _end_unreadable(self, position: int) -> None:
        """Put the events behind an unreadable event into the heap again, because claims took them out."""
        if position in self.unreadable:
            self.unreadable.discard(position)
            self._rebuild_heap()

    def _prune(self) -> None:
        """Rebuild the heap if most of its items are outdated, because a process that only publishes never pops them."""
        if len(self._due) > max(_HEAP_MIN_ITEMS, _HEAP_MAX_RATIO * self.counts[PENDING]):
            self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        self._due = [(r.due, r.position) for r in self.rows.values() if r.status == PENDING and r.due is not None]
        heapify(self._due)

    def put_back(self, rows: Iterable[EventRow]) -> None:
        """Put rows from `pop_due` back, except rows that have changed meanwhile."""
        for row in rows:
            if row.due is not None and self.rows.get(row.position) is row:
                heappush(self._due, (row.due, row.position))

    def oldest_due(self, now: float) -> EventRow | None:
        """Return the event that the next claim would take first."""
        found = self.pop_due(now, 1)
        self.put_back(found)
        return found[0] if found else None

    def head_with_followers(self, head: EventRow, limit: int, now: float) -> list[EventRow]:
        """Return the head of a queue and the events behind it that the same claim may take."""
        if head.key is None or limit <= 1 or head.crash_count:
            return [head]
        queue = self.queues[head.key]
        start = 0 if queue.open[0] == head.position else queue.open.index(head.position)
        found = [head]
        for index in range(start + 1, min(start + limit, len(queue.open))):
            row = self.rows[queue.open[index]]
            if row.status != PENDING or row.crash_count or (row.not_before or 0) > now:
                break
            found.append(row)
        return found

    def next_head(self, key: str) -> EventRow | None:
        """Return the next head of a queue that has no head: the first event in flight, else the first open event."""
        queue = self.queues.get(key)
        if queue is None or queue.head is not None or queue.blocked_by is not None or not queue.open:
            return None
        if queue.in_flight:
            return next(row for p in queue.open if (row := self.rows[p]).status == PROCESSING)
        return self.rows[queue.open[0]]

    def _update_queue(self, key: str, old: EventRow | None, new: EventRow | None) -> None:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = KeyQueue()
        position = (new or old).position  # type: ignore[union-attr] # one of the two is given
        was, now = old is not None and old.status != DEAD, new is not None and new.status != DEAD
        if now and not was:
            _insert(queue.open, position)
        elif was and not now:
            if queue.open[0] == position:
                queue.open.popleft()
            else:
                queue.open.remove(position)
        queue.in_flight += _is_in_flight(new) - _is_in_flight(old)
        if now and new is not None and new.due is not None:
            queue.head = position
        elif queue.head == position:
            queue.head = None
        if new is not None and new.blocks:
            queue.blocked_by = position
        elif queue.blocked_by == position:
            queue.blocked_by = None
        if not queue.open and queue.blocked_by is None:
            del self.queues[key]


class EventIndex:
    """The indexes of all streams, with leases and pauses. A stream is loaded when it is first used.

    `in_flight` maps the token of each lease to its positions that are not settled yet.
    """

    def __init__(self, load: Loader, now: float) -> None:
        self._load = load
        # The current time. Rows that are loaded or applied get their due times relative to it.
        self.now = now
        self._streams: dict[str, StreamIndex] = {}
        self.leases: dict[int, Lease] = {}
        self.in_flight: dict[int, set[int]] = {}
        self.pauses: dict[str, StreamPause] = {}
        self.log_sequence = 0

    def stream(self, name: str) -> StreamIndex:
        """Return the index of a stream, loading it if needed."""
        index = self._streams.get(name)
        if index is None:
            index = StreamIndex(name)
            for row in sorted(self._load(name), key=lambda row: row.position):
                index.put(_adjust_to_clock(row, self.now))
                if row.error_code in (DAMAGED, UNREADABLE) and row.key is None and row.status == PENDING:
                    index.unreadable.add(row.position)
            # The file of a new head is often not rewritten, so the files may not say which event is the head of a key.
            # That follows from the order of the events.
            for key in list(index.queues):
                if (head := index.next_head(key)) is not None:
                    head.due = max(min(head.created_at, self.now), head.not_before or 0)
                    index.put(head)
            self._streams[name] = index
            for lease in self.leases.values():
                if lease.stream == name:
                    rows = (index.rows.get(position) for position in lease.positions)
                    # An event that was released early may be in flight again under another lease.
                    self.in_flight[lease.token] = {
                        r.position for r in rows if r and r.status == PROCESSING and r.token == lease.token
                    }
        return index

    def is_loaded(self, name: str) -> bool:
        """Return whether a stream is completely loaded. Using a loaded stream reads no file."""
        return name in self._streams and not self._streams[name].unreadable

    def owns(self, stream: str, position: int, token: int) -> bool:
        """Return whether an event is in flight under this token."""
        row = self.stream(stream).rows.get(position)
        return row is not None and row.token == token and row.status == PROCESSING and token in self.leases

    def unload(self, name: str) -> None:
        """Unload a stream, so that its directories are read again."""
        self._streams.pop(name, None)

    def unload_all(self) -> None:
        """Unload all streams."""
        self._streams.clear()

    def apply(self, entry: JournalEntry) -> None:
        """Apply a journal entry that another process has written."""
        for lease in entry.leases:
            self.add_lease(lease)
        for row in entry.rows:
            self._apply_row(_adjust_to_clock(row, self.now))
        for ended in entry.ended:
            self.remove(ended.stream, ended.position)
        for stream, position in entry.vanished:
            self.remove(stream, position)
        for token in entry.closed:
            self.remove_lease(token)
        for pause in entry.pauses:
            self.pauses[pause.stream] = pause
        for stream in entry.resumed:
            self.pauses.pop(stream, None)
        if entry.log:
            self.log_sequence = entry.log.first + len(entry.log.lines) - 1

    def _apply_row(self, row: EventRow) -> None:
        """Store the state of an event that another process has written."""
        index = self._streams.get(row.stream)
        old = index.rows.get(row.position) if index else None
        if index and old and row.status == PENDING and row.error_code in FILE_PROBLEMS:
            if row.key != old.key:
                # One of the two processes does not know the key, because the file was unusable when it started.
                due = old.due if row.due is None or old.due is None else row.due
                row = replace(row, key=old.key, due=due)
        elif index and row.position in index.unreadable:
            # The other process may know the key, and the queues here were built without it.
            self.unload(row.stream)
        self.put(row)

    def put(self, row: EventRow) -> None:
        """Store the current state of an event, if its stream is loaded."""
        index = self._streams.get(row.stream)
        if index is not None:
            old = index.rows.get(row.position)
            if old is not None and old.status == PROCESSING and (row.status != PROCESSING or row.token != old.token):
                self._remove_from_lease(old)
            index.put(row)

    def remove(self, stream: str, position: int) -> None:
        """Remove an event that has ended."""
        index = self._streams.get(stream)
        if index is not None:
            old = index.rows.get(position)
            if old is not None and old.status == PROCESSING:
                self._remove_from_lease(old)
            index.remove(position)

    def _remove_from_lease(self, row: EventRow) -> None:
        if (positions := self.in_flight.get(row.token)) is not None:
            positions.discard(row.position)

    def add_lease(self, lease: Lease) -> None:
        """Add a lease, or replace a known lease. A replacement differs only in its cancelled events."""
        if lease.token not in self.leases:
            self.in_flight[lease.token] = set(lease.positions)
        self.leases[lease.token] = lease

    def remove_lease(self, token: int) -> None:
        """Remove a lease."""
        self.leases.pop(token, None)
        self.in_flight.pop(token, None)


def _adjust_to_clock(row: EventRow, now: float) -> EventRow:
    """Return a row whose wait starts now, if the clock was set back after its due time was chosen."""
    decided = row.created_at if row.due_set_at is None and row.error_code is None else row.due_set_at
    if row.status != PENDING or row.due is None or decided is None or decided <= now:
        return row
    wait = max(row.due - decided, 0.0)
    # The event must still not run before the time that the publisher chose.
    return replace(row, due=min(row.due, max(now + wait, row.not_before or 0)))


def _insert(positions: deque[int], position: int) -> None:
    if not positions or positions[-1] < position:
        positions.append(position)
    else:
        positions.insert(bisect_left(positions, position), position)


def _is_in_flight(row: EventRow | None) -> int:
    return row is not None and row.status == PROCESSING
