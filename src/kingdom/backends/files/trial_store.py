"""A store in its own directory, which a verification creates and removes."""

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

from kingdom.backends.files.index.event_index import EventIndex, StreamIndex
from kingdom.backends.files.journal.entry import PENDING, PROCESSING, EventRow
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.lock import STOPPED_SECONDS
from kingdom.backends.files.system.processes import holders_of, is_stopped
from kingdom.backends.files.tree.file_formats import decode_archive_line
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES
from kingdom.backends.files.tree.log import read_log
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus, Transaction
from kingdom.trial_store import StoredEvent, TrialStore

# How long the processes under test have to kill a stopped holder of the lock. They may still be starting.
_PATIENCE_SECONDS = 15 * STOPPED_SECONDS
_CHECK_EVERY_SECONDS = 0.05


class _DiscardTransactionError(Exception):
    """Raised to roll a transaction back."""


class FilesTrialStore(TrialStore):
    """A store in the subdirectory `schema` of a directory, or in the directory itself if it already has this name."""

    has_one_writer = True
    # A process that waits for a stopped holder of the lock must still be able to renew its leases.
    shortest_lease = timedelta(seconds=2.5 * STOPPED_SECONDS)

    def __init__(self, directory: Path, schema: str) -> None:
        root = Path(os.path.abspath(directory))
        self._root = root if root.name == schema else root / schema
        self._created_parent = not self._root.parent.exists()
        self.url = self.safe_url = f"file:{self._root}"
        self.schema = schema
        # This store stays open during the whole verification, so its index is like that of a long-running process.
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
        if self._created_parent:
            with suppress(OSError):
                self._root.parent.rmdir()

    async def cut_connections(self, _at_most: int) -> int:
        """See the port; files have no connections."""
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
    async def slow_transaction(self, bus: Bus, *, seconds: float, keep: bool) -> AsyncIterator[Transaction]:
        """See the port."""
        with suppress(_DiscardTransactionError):
            async with bus.transaction() as transaction:
                yield transaction
                await asyncio.sleep(seconds)
                if not keep:
                    raise _DiscardTransactionError

    def _wait_for_kill(self) -> None:
        """Wait for the processes under test to kill every stopped holder of the lock. Record holders that are left."""
        end = time.monotonic() + _PATIENCE_SECONDS
        stopped = {pid for pid in self.holders() if is_stopped(pid)}
        while stopped and time.monotonic() < end:
            time.sleep(_CHECK_EVERY_SECONDS)
            stopped &= {pid for pid in self.holders() if is_stopped(pid)}
        self._left_stopped |= stopped

    def _unfinished(self) -> int:
        self._wait_for_kill()
        with _reopened(self._root) as store:
            return sum(_count_files(store, stream, PENDING, PROCESSING) for stream in store.stream_names())

    def _broken_invariants(self) -> list[str]:
        self._wait_for_kill()
        broken = [f"a stopped holder of the lock was not killed: process {pid}" for pid in self._left_stopped]
        self._left_stopped.clear()
        with self._store.exclusive() as plan:
            indexed, found = plan.events, self._store.load_events()
            broken += _wrong_leases(indexed, found)
            for name in self._store.stream_names():
                own, fresh = indexed.stream(name), found.stream(name)
                broken += [*_differences(own, fresh), *_wrong_queues(fresh), *self._find_duplicates(fresh)]
                if (files := _count_files(self._store, name, *STATUS_DIRECTORIES)) != len(fresh.rows):
                    broken.append(f"{files} files for {len(fresh.rows)} events: {name}")
            if indexed.log_sequence != found.log_sequence:
                broken.append(f"index differs from files: log at {indexed.log_sequence}, not {found.log_sequence}")
            # Check this last, because `in_flight` is filled when the streams are loaded.
            broken += [f"lease left over: {token}" for token, positions in found.in_flight.items() if not positions]
        return broken

    def _events(self) -> list[StoredEvent]:
        with _reopened(self._root) as store:
            found = []
            for name in store.stream_names():
                found += [_stored_event(row) for row in store.events.stream(name).rows.values()]
                for line in store.tree.read_archive(name):
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
        with _reopened(self._root) as store:
            logged = read_log(store.layout, LogCursor(0, 0), sys.maxsize)
        return [each.entry.data for each in logged if each.entry.type == entry_type]

    def _find_duplicates(self, index: StreamIndex) -> Iterator[str]:
        """Read the archive lines that are new since the last call, and describe events that exist more than once."""
        ended = self._ended[index.name]
        for path in Path(self._store.layout.archive_file(index.name, "")).parent.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read_until[path])
                for line in file:
                    event = decode_archive_line(line).event["eventId"]
                    if event in ended:
                        yield f"event ended twice: {index.name}/{event}"
                    ended.add(event)
                self._read_until[path] = file.tell()
        for event, times in Counter(row.event_id for row in index.rows.values()).items():
            if times > 1 or event in ended:
                yield f"event twice in its stream: {index.name}/{event}"


def _count_files(store: Store, stream: str, *statuses: str) -> int:
    directories = (store.layout.events(stream, status) for status in statuses)
    return sum(len(os.listdir(directory)) for directory in directories if os.path.isdir(directory))


@contextmanager
def _reopened(root: Path) -> Iterator[Store]:
    """Open and hold the store with a new index, as a new process does."""
    store = Store(str(root), {})
    store.open()
    try:
        with store.exclusive():
            yield store
    finally:
        store.close()


def _wrong_leases(indexed: EventIndex, found: EventIndex) -> Iterator[str]:
    for token in sorted(indexed.leases.keys() ^ found.leases.keys()):
        where = "index" if token in indexed.leases else "files"
        yield f"index differs from files: lease {token} is only in the {where}"


def _differences(indexed: StreamIndex, found: StreamIndex) -> Iterator[str]:
    """Compare the index of a long-running process with the files."""
    for position in sorted(indexed.rows.keys() | found.rows.keys()):
        ours, theirs = indexed.rows.get(position), found.rows.get(position)
        if ours is None or theirs is None:
            where = "index" if ours else "files"
            yield f"index differs from files: {indexed.name}/{position} is only in the {where}"
        elif (one := _comparable_state(ours)) != (other := _comparable_state(theirs)):
            yield f"index differs from files: {indexed.name}/{position} is {one}, in its file {other}"


def _comparable_state(row: EventRow) -> tuple[Any, ...]:
    """Return the part of a row that must be equal in the index and in the files."""
    token = row.token if row.status == PROCESSING else None
    head = row.due is not None
    return row.event_id, row.key, row.status, head, token, row.attempt, row.crash_count, row.error_code


def _wrong_queues(index: StreamIndex) -> Iterator[str]:
    """Describe queues with a wrong head or with two leases. The head must be the first open event."""
    for key, queue in index.queues.items():
        rows = [index.rows[position] for position in queue.open]
        heads = [row for row in rows if row.due is not None]
        name = f"{index.name}/{key}"
        if len(heads) > 1:
            yield f"two heads: {name}"
        if rows and not heads and queue.blocked_by is None:
            yield f"no head: {name}"
        if heads and heads[0] is not rows[0]:
            yield f"head is not the first: {name}"
        if len({row.token for row in rows if row.status == PROCESSING}) > 1:
            yield f"two owners: {name}"


def _stored_event(row: EventRow) -> StoredEvent:
    return StoredEvent(
        event_id=row.event_id,
        stream=row.stream,
        partition_key=row.key,
        position=row.position,
        status=row.status,  # type: ignore[arg-type] # one of the statuses
        token=row.token,
        error_code=row.error_code,
    )
