"""A directory of its own, made for one verification and removed after it."""

import asyncio
import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.backends.files.bodies import read_ended
from kingdom.backends.files.books import Books, StreamBook
from kingdom.backends.files.entry import PENDING, PROCESSING, Row
from kingdom.backends.files.layout import STATUS_DIRECTORIES
from kingdom.backends.files.lock import STOPPED_SECONDS, holders_of, is_stopped
from kingdom.backends.files.log import read_log
from kingdom.backends.files.store import Store
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus, Transaction
from kingdom.trial_store import StoredEvent, TrialStore

# Who is under test has killed a stopped holder of the lock by then, though all but that one may only be starting.
_PATIENCE_SECONDS = 15 * STOPPED_SECONDS
_LOOK_EVERY_SECONDS = 0.05


class _NotKeptError(Exception):
    """Rolls a transaction back."""


class FilesTrialStore(TrialStore):
    """A store below a directory, or that directory itself where it bears the name already."""

    has_one_writer = True
    # Whoever waits for a stopped holder of the lock must be able to renew afterwards.
    shortest_lease = timedelta(seconds=2.5 * STOPPED_SECONDS)

    def __init__(self, directory: Path, schema: str) -> None:
        root = Path(os.path.abspath(directory))
        self._root = root if root.name == schema else root / schema
        self._made_parent = not self._root.parent.exists()
        self.url = self.safe_url = f"file:{self._root}"
        self.schema = schema
        # Open from beginning to end: its books follow the journal as those of any long-running process do.
        self._store = Store(str(self._root), {})
        self._ended: dict[str, set[str]] = defaultdict(set)
        self._read_until: dict[Path, int] = defaultdict(int)
        self._left_stopped: set[int] = set()

    async def create(self) -> None:
        """See the port."""
        await asyncio.to_thread(self._store.open)

    async def drop(self) -> None:
        """See the port."""
        await asyncio.to_thread(self._store.close)
        if self._root.exists():
            await asyncio.to_thread(shutil.rmtree, self._root)
        if self._made_parent:
            with suppress(OSError):
                self._root.parent.rmdir()

    async def cut_connections(self, _at_most: int) -> int:
        """See the port; there are none."""
        return 0

    def holders(self) -> list[int]:
        """See the port."""
        return holders_of(os.stat(self._store.layout.lock))

    async def unfinished(self) -> int:
        """See the port."""
        return await asyncio.to_thread(self._unfinished)

    async def broken_invariants(self) -> list[str]:
        """See the port."""
        return await asyncio.to_thread(self._broken_invariants)

    async def events(self) -> list[StoredEvent]:
        """See the port."""
        return await asyncio.to_thread(self._events)

    async def log_data(self, entry_type: str) -> list[Mapping[str, Any]]:
        """See the port."""
        return await asyncio.to_thread(self._log_data, entry_type)

    @asynccontextmanager
    async def lingering(self, bus: Bus, *, seconds: float, keep: bool) -> AsyncIterator[Transaction]:
        """See the port."""
        with suppress(_NotKeptError):
            async with bus.transaction() as transaction:
                yield transaction
                await asyncio.sleep(seconds)
                if not keep:
                    raise _NotKeptError

    def _wait_for_others(self) -> None:
        """Leave it to those under test to kill a stopped holder of the lock; one that they leave alone is noted."""
        end = time.monotonic() + _PATIENCE_SECONDS
        stopped = {pid for pid in self.holders() if is_stopped(pid)}
        while stopped and time.monotonic() < end:
            time.sleep(_LOOK_EVERY_SECONDS)
            stopped &= {pid for pid in self.holders() if is_stopped(pid)}
        self._left_stopped |= stopped

    def _unfinished(self) -> int:
        self._wait_for_others()
        with _fresh(self._root) as store:
            return sum(_files(store, stream, PENDING, PROCESSING) for stream in store.stream_names())

    def _broken_invariants(self) -> list[str]:
        self._wait_for_others()
        broken = [f"a stopped holder of the lock was waited for: process {pid}" for pid in self._left_stopped]
        self._left_stopped.clear()
        with self._store.exclusive() as draft:
            believed, found = draft.books, self._store.read_books()
            broken += _wrong_leases(believed, found)
            for name in self._store.stream_names():
                ours, theirs = believed.stream(name), found.stream(name)
                broken += [*_differences(ours, theirs), *_wrong_lines(theirs), *self._twice(theirs)]
                if (files := _files(self._store, name, *STATUS_DIRECTORIES)) != len(theirs.rows):
                    broken.append(f"{files} files for {len(theirs.rows)} events: {name}")
            if believed.log_sequence != found.log_sequence:
                broken.append(f"books differ from files: log at {believed.log_sequence}, not {found.log_sequence}")
            # Last, since only now the events in flight are known.
            broken += [f"lease left over: {token}" for token, flying in found.flying.items() if not flying]
        return broken

    def _events(self) -> list[StoredEvent]:
        with _fresh(self._root) as store:
            found = []
            for name in store.stream_names():
                found += [_stored(row) for row in store.books.stream(name).rows.values()]
                for line in store.tree.ended_events(name):
                    found.append(
                        StoredEvent(
                            event_id=line.event["eventId"],
                            stream=name,
                            partition_key=line.event.get("partitionKey"),
                            position=line.position,
                            status="DISCARDED" if line.status == "DISCARDED" else "DONE",
                            token=line.token,
                            error_code=line.error.code if line.error else None,
                        )
                    )
        return sorted(found, key=lambda event: event.position)

    def _log_data(self, entry_type: str) -> list[Mapping[str, Any]]:
        with _fresh(self._root) as store:
            logged = read_log(store.layout, LogCursor(0, 0), sys.maxsize)
        return [each.entry.data for each in logged if each.entry.type == entry_type]

    def _twice(self, book: StreamBook) -> Iterator[str]:
        """Read what has ended since the last look, and name the events that are there more than once."""
        ended = self._ended[book.name]
        for path in Path(self._store.layout.done(book.name, "")).parent.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read_until[path])
                for line in file:
                    event = read_ended(line).event["eventId"]
                    if event in ended:
                        yield f"event ended twice: {book.name}/{event}"
                    ended.add(event)
                self._read_until[path] = file.tell()
        for event, times in Counter(row.event_id for row in book.rows.values()).items():
            if times > 1 or event in ended:
                yield f"event twice in its stream: {book.name}/{event}"


def _files(store: Store, stream: str, *statuses: str) -> int:
    directories = (store.layout.events(stream, status) for status in statuses)
    return sum(len(os.listdir(directory)) for directory in directories if os.path.isdir(directory))


@contextmanager
def _fresh(root: Path) -> Iterator[Store]:
    """Hold the store as a process does that has only just come and knows nothing but the files."""
    store = Store(str(root), {})
    store.open()
    try:
        with store.exclusive():
            yield store
    finally:
        store.close()


def _wrong_leases(believed: Books, found: Books) -> Iterator[str]:
    for token in sorted(believed.leases.keys() ^ found.leases.keys()):
        where = "books" if token in believed.leases else "files"
        yield f"books differ from files: lease {token} is only in the {where}"


def _differences(believed: StreamBook, found: StreamBook) -> Iterator[str]:
    """Compare what a long-running process takes for true with what `ls` and `cat` show."""
    for position in sorted(believed.rows.keys() | found.rows.keys()):
        ours, theirs = believed.rows.get(position), found.rows.get(position)
        if ours is None or theirs is None:
            where = "books" if ours else "files"
            yield f"books differ from files: {believed.name}/{position} is only in the {where}"
        elif (one := _standing(ours)) != (other := _standing(theirs)):
            yield f"books differ from files: {believed.name}/{position} is {one}, in its file {other}"


def _standing(row: Row) -> tuple[Any, ...]:
    """Return what must be the same in books and files; a head's time and a settled token stand in books only."""
    token = row.token if row.status == PROCESSING else None
    head = row.due is not None
    return row.event_id, row.key, row.status, head, token, row.attempt, row.crash_count, row.error_code


def _wrong_lines(book: StreamBook) -> Iterator[str]:
    """Check every line: one head, which is the first, and one owner at most."""
    for key, line in book.lines.items():
        rows = [book.rows[position] for position in line.open]
        heads = [row for row in rows if row.due is not None]
        name = f"{book.name}/{key}"
        if len(heads) > 1:
            yield f"two heads: {name}"
        if rows and not heads and line.blocked_by is None:
            yield f"no head: {name}"
        if heads and heads[0] is not rows[0]:
            yield f"head is not the first: {name}"
        if len({row.token for row in rows if row.status == PROCESSING}) > 1:
            yield f"two owners: {name}"


def _stored(row: Row) -> StoredEvent:
    return StoredEvent(
        event_id=row.event_id,
        stream=row.stream,
        partition_key=row.key,
        position=row.position,
        status=row.status,  # type: ignore[arg-type]  # one of three words
        token=row.token,
        error_code=row.error_code,
    )
