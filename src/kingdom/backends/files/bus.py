"""The Bus on files."""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Self

import structlog

from kingdom.backends.files.adoption import Adopter
from kingdom.backends.files.bodies import moment, read_body
from kingdom.backends.files.disk import Disk
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import DAMAGED, MISSING, UNREADABLE, Lease, Row
from kingdom.backends.files.keyring import Keyring
from kingdom.backends.files.lock import Busy, boot_clock, has_ended
from kingdom.backends.files.store import Store
from kingdom.backends.files.thread import DiskThread
from kingdom.backends.files.transaction import FilesTransaction
from kingdom.backends.files.tree import UnreadableFile
from kingdom.backends.files.wakeup import Wakeups
from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, LeaseRenewal
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Stream, Topology
from kingdom.errors import KingdomError, MalformedEvent

_DEFAULT_IDLE_LIMIT = timedelta(seconds=30)
# Editors move a file away and write it anew; people take longer to mend what they have broken.
_MISSING_SECONDS = 10.0
_DAMAGED_SECONDS = 60.0
# How often a file is tried again that the system does not give out.
_UNREADABLE_SECONDS = 10.0
_log = structlog.get_logger(__name__)


class FilesBus(Bus):
    """Events, leases and records as files below one directory of one host."""

    joins_callers_transaction = False
    spans_hosts = False
    adopts_dropped_files = True
    has_one_writer = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        topology: Topology,
        kinds: Sequence[RecordKind] = (),
        *,
        idle_limit: timedelta = _DEFAULT_IDLE_LIMIT,
        create: bool = True,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(topology, kinds)
        self._create = create
        self.store = Store(os.path.abspath(root), self.kinds, disk)
        self.idle_limit = idle_limit
        self._keyring = Keyring(idle_limit)
        # One thread: the lock lets only one in at a time anyway, and the event loop never waits for a sync.
        self._thread = DiskThread("kingdom-files")
        self.in_thread = self._thread.run
        self._adopter = Adopter(self.store, topology)
        self._adopting: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Lock()
        self._wakeups = Wakeups(self.store.layout, self._look_soon, self._adopter.boxes)

    async def __aenter__(self) -> Self:
        await self.in_thread(lambda: self.store.open(create=self._create))
        await self.in_thread(self._adopter.make_boxes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of every file; to close again changes nothing."""
        async with self._closing:
            if self._thread.stopped:
                return
            try:
                await self._wakeups.close()
                await asyncio.gather(*self._adopting, return_exceptions=True)
            finally:
                try:
                    await self.in_thread(self.store.close)
                finally:
                    self._thread.stop()

    @asynccontextmanager
    async def transaction(self, hold: Sequence[Delivery] = ()) -> AsyncIterator[FilesTransaction]:
        """Open a transaction; see the port."""
        transaction = FilesTransaction(self.store, self.topology, self.kinds, self._keyring, self.in_thread)
        try:
            await transaction.hold(hold)
            yield transaction
            await transaction.apply()
        finally:
            transaction.end()
        self._wakeups.published({copy.stream.name for copy in transaction.changes.copies.values()})
        transaction.run_after_commit()

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim due events; see the port."""
        declared = self.topology.stream(stream)
        # Where nobody is in the way a claim syncs nothing: going to the thread and back takes longer than the claim.
        with suppress(Busy):
            return self._claim(declared, limit, worker, wait=False)
        return await self.in_thread(lambda: self._claim(declared, limit, worker, wait=True))

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases in their files; see the port."""
        alive, cancelled = set(), set()
        with self.store.exclusive() as draft:
            for token, length in leases.items():
                lease = self.store.books.leases.get(token)
                if lease is not None:
                    lease.expires = boot_clock() + length.total_seconds()
                    lease.expires_at = moment(draft.now + length.total_seconds()).isoformat()
                    self.store.tree.write_lease(lease)
                    alive.add(token)
                    cancelled.update(lease.cancelled)
        return LeaseRenewal(frozenset(alive), frozenset(cancelled))

    async def reap(self) -> int:
        """Give back the events of expired leases, and take in what people have dropped; see the port."""
        events, streams = await self.in_thread(self._reap)
        if self._adopter.boxes:
            streams |= await self.in_thread(self._adopter.look)
        self._wakeups.published(streams)
        return events

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint; see the port."""
        await self._wakeups.wait(streams, at_most)

    def nudge(self, streams: Collection[str]) -> None:
        """Wake the workers of these streams."""
        self._wakeups.published(streams)

    def lease_until(self, lease: Lease) -> datetime:
        """Return when a lease ends, as its file says."""
        known = self.store.tree.read_lease(lease.token)
        return datetime.fromisoformat((known or lease).expires_at)

    def _look_soon(self, paths: Collection[str]) -> None:
        async def look() -> None:
            try:
                self._wakeups.published(await self.in_thread(lambda: self._adopter.look(paths)))
            except KingdomError as error:
                _log.warning("dropped files wait for the next look", error=str(error))

        looking = asyncio.create_task(look(), name="kingdom-adopt")
        self._adopting.add(looking)
        looking.add_done_callback(self._adopting.discard)

    def _claim(self, stream: Stream, limit: int, worker: str, *, wait: bool) -> list[Delivery]:
        with self.store.exclusive(wait=wait) as draft:
            if not wait and not self.store.books.knows(stream.name):
                raise Busy
            self.store.look_again(stream.name)
            try:
                rows, envelopes = self._readable(draft, stream, limit, wait=wait)
                claimed = draft.claim(stream.name, rows, worker, stream.lease) if rows else []
            finally:
                draft.put_back(stream)
            if claimed or draft.before:
                # A claim that a loss of power takes back has never been, so it need not be waited for.
                self.store.commit(draft, durable=False, wait=wait)
        return _deliveries(claimed, envelopes)

    def _readable(
        self, draft: Draft, stream: Stream, limit: int, *, wait: bool
    ) -> tuple[list[Row], dict[int, Envelope]]:
        """Return what can be claimed, with envelopes; a file that is damaged or gone never stops the others.

        What becomes of such a file is for who may `wait`: the log that tells of it is synced.
        """
        rows: list[Row] = []
        envelopes: dict[int, Envelope] = {}
        spoilt: set[str] = set()
        # All are read before any is decoded: going back and forth between the two takes longer.
        for row, content in [(row, self.store.tree.content(row)) for row in draft.claimable(stream, limit)]:
            if row.key is not None and row.key in spoilt:
                continue
            damage: MalformedEvent | None = None
            try:
                if isinstance(content, bytes):
                    envelopes[row.position], self.store.bodies[row.position] = read_body(row, content)
                    rows.append(row)
                    continue
                damage = content
            except MalformedEvent as error:
                damage = error
            if not wait:
                raise Busy
            spoilt.add(row.key or "")
            if damage is None:
                self._missing(draft, row)
            elif isinstance(damage, UnreadableFile):
                self._unreadable(draft, row, str(damage))
            else:
                self._damaged(draft, row, str(damage))
        return rows, envelopes

    def _missing(self, draft: Draft, row: Row) -> None:
        reason = "its file is gone: put it back within seconds, or the event counts as withdrawn"
        if draft.spoil(row, MISSING, reason) > _MISSING_SECONDS:
            draft.vanish(row)
            self._tell(draft, "event.withdrawn", row, "its file was removed by hand")

    def _damaged(self, draft: Draft, row: Row, reason: str) -> None:
        if draft.spoil(row, DAMAGED, reason) > _DAMAGED_SECONDS:
            draft.give_up(row, DAMAGED, reason)
            self._tell(draft, "event.damaged", row, reason)

    def _unreadable(self, draft: Draft, row: Row, reason: str) -> None:
        """Let an event wait for as long as it takes: it is the disk or an owner that must be mended, not the event."""
        is_known = row.error_code == UNREADABLE and row.last_attempt_at is not None
        draft.spoil(row, UNREADABLE, reason, again=_UNREADABLE_SECONDS)
        if not is_known:
            self._tell(draft, "event.unreadable", row, reason)

    def _tell(self, draft: Draft, what: str, row: Row, reason: str) -> None:
        data = {"event_id": row.event_id, "stream": row.stream, "reason": reason}
        draft.say(LogEntry(type=what, actor="bus", data=data))

    def _reap(self) -> tuple[int, set[str]]:
        events, streams = 0, set()
        with self.store.exclusive() as draft:
            for lease in list(self.store.books.leases.values()):
                if self._has_expired(lease):
                    given_back = draft.reap(lease)
                    events += given_back
                    if given_back:
                        streams.add(lease.stream)
            if draft.entry.closed:
                self.store.commit(draft)
        return events, streams

    def _has_expired(self, lease: Lease) -> bool:
        """Look at the file, which its holder may have renewed; after a restart of the machine no holder is left."""
        known = self.store.tree.read_lease(lease.token)
        if known is None or known.boot != self.store.boot or known.expires < boot_clock():
            return True
        return has_ended(known.process)


def _deliveries(rows: Sequence[Row], envelopes: Mapping[int, Envelope]) -> list[Delivery]:
    runs: dict[Any, list[int]] = {}
    rows = sorted(rows, key=lambda row: row.position)
    for row in rows:
        if row.key is not None:
            runs.setdefault(row.key, []).append(row.position)
    tuples = {key: tuple(positions) for key, positions in runs.items()}
    return [
        Delivery(
            stream=row.stream,
            position=row.position,
            token=row.token,
            envelope=envelopes[row.position],
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            crash_count=row.crash_count,
            ordered=row.key is not None,
            published_at=moment(row.created_at),
            run=tuples.get(row.key, ()),
            cancelled=row.cancel_requested,
        )
        for row in rows
    ]
