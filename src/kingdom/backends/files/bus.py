"""The Bus on files."""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Self

import structlog

from kingdom.backends.files.adoption import Adopter
from kingdom.backends.files.journal.entry import DAMAGED, MISSING, UNREADABLE, EventRow, Lease
from kingdom.backends.files.key_locks import KeyLocks
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.system.host import boot_clock
from kingdom.backends.files.system.lock import StoreBusy
from kingdom.backends.files.system.processes import has_ended
from kingdom.backends.files.system.thread import DiskThread
from kingdom.backends.files.transaction import FilesTransaction
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.file_formats import decode_body, to_datetime
from kingdom.backends.files.tree.tree import UnreadableFile
from kingdom.backends.files.wakeup import FileWakeups
from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Done
from kingdom.bus.port import Bus, LeaseRenewal
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Stream, Topology
from kingdom.errors import KingdomError, MalformedEvent, Misconfigured

_DEFAULT_IDLE_LIMIT = timedelta(seconds=30)
# How long the bus waits for a missing or damaged file. Editors replace a file quickly; people need longer to fix one.
_MISSING_SECONDS = 10.0
_DAMAGED_SECONDS = 60.0
# How often a missing or damaged file is read again, and how often one that the system cannot read.
_READ_AGAIN_SECONDS = 2.0
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
        if carried := [name for name in topology.names() if topology.stream(name).transport]:
            raise Misconfigured(f"streams {', '.join(carried)} have a transport, which a store of files does not offer")
        self._create = create
        self.store = Store(os.path.abspath(root), self.kinds, disk)
        self.idle_limit = idle_limit
        self._key_locks = KeyLocks(idle_limit)
        # One thread is enough, because only one thread can hold the lock. The event loop does not wait for syncs.
        self._thread = DiskThread("kingdom-files")
        self.run_in_thread = self._thread.run
        self._adopter = Adopter(self.store, topology)
        self._adopting: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Lock()
        self._wakeups = FileWakeups(self.store.layout, self._adopt_soon, self._adopter.directories)

    async def __aenter__(self) -> Self:
        await self.run_in_thread(lambda: self.store.open(create=self._create))
        await self.run_in_thread(self._adopter.create_directories)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every file. Closing again changes nothing."""
        async with self._closing:
            if self._thread.stopped:
                return
            try:
                await self._wakeups.close()
                await asyncio.gather(*self._adopting, return_exceptions=True)
            finally:
                try:
                    await self.run_in_thread(self.store.close)
                finally:
                    self._thread.stop()

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[FilesTransaction]:
        """Open a transaction; see `Bus.transaction`. A check of the leases is cheap here, so it is never delayed."""
        del optimistic
        transaction = FilesTransaction(self.store, self.topology, self.kinds, self._key_locks, self.run_in_thread)
        try:
            await transaction.hold(hold)
            yield transaction
            await transaction.apply()
        finally:
            transaction.end()
        self._wakeups.wake_workers({copy.stream.name for copy in transaction.changes.copies.values()})
        # The next event of a key may be due now, or the same event again.
        settled = transaction.changes.settlements.values()
        self._wakeups.wake_own_workers(
            {each.stream.name for each in settled if each.ordering_key or not isinstance(each.outcome, Done)}
        )
        transaction.run_after_commit()

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim due events; see `Bus.claim`."""
        declared = self.topology.stream(stream)
        try:
            # If no other process holds the store, claiming here is faster than switching to the thread.
            claimed = self._claim(declared, limit, worker, wait=False)
        except StoreBusy:
            claimed = await self.run_in_thread(lambda: self._claim(declared, limit, worker, wait=True))
        if claimed:
            self._wakeups.wake_own_workers({stream})
        return claimed

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases in their files; see `Bus.renew`."""
        alive, cancelled = set(), set()
        with self.store.exclusive() as plan:
            for token, length in leases.items():
                lease = self.store.events.leases.get(token)
                if lease is not None:
                    lease.expires = boot_clock() + length.total_seconds()
                    lease.expires_at = to_datetime(plan.now + length.total_seconds()).isoformat()
                    self.store.tree.write_lease(lease)
                    alive.add(token)
                    cancelled.update(lease.cancelled)
        return LeaseRenewal(frozenset(alive), frozenset(cancelled))

    async def reap(self) -> int:
        """Requeue the events of expired leases, and adopt dropped files; see `Bus.reap`."""
        events, streams = await self.run_in_thread(self._reap)
        if self._adopter.directories:
            streams |= await self.run_in_thread(self._adopter.adopt)
        self._wakeups.wake_workers(streams)
        return events

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint; see `Bus.wait`."""
        await self._wakeups.wait(streams, at_most)

    def nudge(self, streams: Collection[str]) -> None:
        """Wake the workers of these streams."""
        self._wakeups.wake_workers(streams)

    def lease_until(self, lease: Lease) -> datetime:
        """Return when a lease ends according to its file."""
        known = self.store.tree.read_lease(lease.token)
        return datetime.fromisoformat((known or lease).expires_at)

    def _adopt_soon(self, paths: Collection[str]) -> None:
        """Adopt files in a background task."""

        async def adopt() -> None:
            try:
                self._wakeups.wake_workers(await self.run_in_thread(lambda: self._adopter.adopt(paths)))
            except KingdomError as error:
                _log.warning("dropped files are not adopted yet; the next scan tries again", error=str(error))

        task = asyncio.create_task(adopt(), name="kingdom-adopt")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def _claim(self, stream: Stream, limit: int, worker: str, *, wait: bool) -> list[Delivery]:
        with self.store.exclusive(wait=wait) as plan:
            if not wait and not self.store.events.is_loaded(stream.name):
                raise StoreBusy
            self.store.reload_if_readable(stream.name)
            try:
                rows, envelopes = self._read_claimable(plan, stream, limit, wait=wait)
                claimed = plan.claim(stream.name, rows, worker, stream.lease) if rows else []
            finally:
                plan.put_back_unclaimed(stream)
            if claimed or plan.before:
                # A claim needs no sync: if a power loss removes it, the event is simply claimed again.
                self.store.commit(plan, durable=False, wait=wait)
        return _deliveries(claimed, envelopes)

    def _read_claimable(
        self, plan: TransactionPlan, stream: Stream, limit: int, *, wait: bool
    ) -> tuple[list[EventRow], dict[int, Envelope]]:
        """Return the claimable rows and their envelopes. A damaged or missing file does not delay other keys.

        If `wait` is false, raise StoreBusy at a damaged or missing file, because the log entry about it needs a sync.
        """
        rows: list[EventRow] = []
        envelopes: dict[int, Envelope] = {}
        unusable_keys: set[str] = set()
        # Read all files first and decode them afterwards, because alternating is slower.
        for row, content in [(row, self.store.tree.read_content(row)) for row in plan.select_claimable(stream, limit)]:
            if row.key is not None and row.key in unusable_keys:
                continue
            damage: MalformedEvent | None = None
            try:
                if isinstance(content, bytes):
                    envelopes[row.position], self.store.bodies[row.position] = decode_body(row, content)
                    rows.append(row)
                    continue
                damage = content
            except MalformedEvent as error:
                damage = error
            if not wait:
                raise StoreBusy
            unusable_keys.add(row.key or "")
            if damage is None:
                self._handle_missing(plan, row)
            elif isinstance(damage, UnreadableFile):
                self._handle_unreadable(plan, row, str(damage))
            else:
                self._handle_damaged(plan, row, str(damage))
        return rows, envelopes

    def _handle_missing(self, plan: TransactionPlan, row: EventRow) -> None:
        reason = f"its file is missing: put it back within {_MISSING_SECONDS:g} s, or the event counts as withdrawn"
        if plan.postpone(row, MISSING, reason, again=_READ_AGAIN_SECONDS) > _MISSING_SECONDS:
            plan.withdraw(row)
            self._log_event(plan, "event.withdrawn", row, "its file was removed")

    def _handle_damaged(self, plan: TransactionPlan, row: EventRow, reason: str) -> None:
        if plan.postpone(row, DAMAGED, reason, again=_READ_AGAIN_SECONDS) > _DAMAGED_SECONDS:
            plan.give_up(row, DAMAGED, reason, blocks=self.topology.stream(row.stream).on_dead == "block")
            self._log_event(plan, "event.damaged", row, reason)

    def _handle_unreadable(self, plan: TransactionPlan, row: EventRow, reason: str) -> None:
        """Let an event wait without a time limit, because the event itself may be fine."""
        is_known = row.error_code == UNREADABLE and row.last_attempt_at is not None
        plan.postpone(row, UNREADABLE, reason, again=_UNREADABLE_SECONDS)
        if not is_known:
            self._log_event(plan, "event.unreadable", row, reason)

    def _log_event(self, plan: TransactionPlan, entry_type: str, row: EventRow, reason: str) -> None:
        data = {"event_id": row.event_id, "stream": row.stream, "reason": reason}
        plan.log(LogEntry(type=entry_type, actor="bus", data=data))

    def _reap(self) -> tuple[int, set[str]]:
        events, streams = 0, set()
        with self.store.exclusive() as plan:
            for lease in list(self.store.events.leases.values()):
                if self._has_expired(lease):
                    requeued = plan.reap(lease)
                    events += requeued
                    if requeued:
                        streams.add(lease.stream)
            if plan.entry.closed:
                self.store.commit(plan)
        return events, streams

    def _has_expired(self, lease: Lease) -> bool:
        """Return whether a lease has expired according to its file, or the process that holds it has ended."""
        known = self.store.tree.read_lease(lease.token)
        if known is None or known.boot != self.store.boot or known.expires < boot_clock():
            return True
        return has_ended(known.process)


def _deliveries(rows: Sequence[EventRow], envelopes: Mapping[int, Envelope]) -> list[Delivery]:
    same_key: dict[Any, list[int]] = {}
    rows = sorted(rows, key=lambda row: row.position)
    for row in rows:
        if row.key is not None:
            same_key.setdefault(row.key, []).append(row.position)
    tuples = {key: tuple(positions) for key, positions in same_key.items()}
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
            published_at=to_datetime(row.created_at),
            same_key=tuples.get(row.key, ()),
            cancelled=row.cancel_requested,
        )
        for row in rows
    ]
