"""Build the next journal entry. All decisions about events are made here, with the index and without reading files.

The index and the entry change together. If a transaction fails, the store loads the index again.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from kingdom.backends.files.index.event_index import EventIndex
from kingdom.backends.files.journal.entry import (
    DEAD,
    FILE_PROBLEMS,
    PENDING,
    PROCESSING,
    EndedEvent,
    EventRow,
    JournalEntry,
    Lease,
)
from kingdom.backends.files.system.host import boot_clock
from kingdom.backends.files.system.processes import own_process
from kingdom.backends.files.tree.file_formats import encode_archive_line, encode_body, to_datetime
from kingdom.bus.delivery import Delivery
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Dead, Defer, Done, Release, Retry
from kingdom.bus.port import EventCopy, Settlement
from kingdom.bus.stream import Stream


class TransactionPlan:
    """A journal entry that is being built. `offset` is its offset in the journal, and `now` its time."""

    def __init__(self, events: EventIndex, offset: int, now: float, boot: str) -> None:
        self.events = events
        self.offset = offset
        self.now = now
        self.entry = JournalEntry()
        # The state of each changed event before this transaction.
        self.before: dict[int, EventRow | None] = {}
        # Changed events whose file keeps its content. The file may move to another directory.
        self.unchanged_files: set[int] = set()
        self.log_entries: list[LogEntry] = []
        self._boot = boot
        self._rows: dict[int, EventRow] = {}
        # The events that `select_claimable` took from the heap of due events.
        self._due: list[EventRow] = []

    def finish(self) -> JournalEntry:
        """Return the complete entry."""
        self.entry.rows = list(self._rows.values())
        return self.entry

    def log(self, *entries: LogEntry) -> None:
        """Add entries to the log."""
        self.log_entries += entries

    def publish(self, copies: Sequence[EventCopy]) -> list[EventCopy]:
        """Enqueue copies, each at its own position. Return the copies that were already in their stream."""
        duplicates = []
        for each in copies:
            index, event_id = self.events.stream(each.stream.name), str(each.envelope.event_id)
            if event_id in index.by_event:
                duplicates.append(each)
                continue
            key = each.envelope.partition_key if each.stream.ordered else None
            not_before = each.at.timestamp() if each.at else None
            row = EventRow(
                stream=each.stream.name,
                # A position is the offset of this entry plus a count. It stays below the offset of the next entry,
                # because each event adds more than one byte to this entry.
                position=self.offset + len(self.entry.bodies),
                event_id=event_id,
                key=key,
                status=PENDING,
                due=None if key is not None and key in index.queues else max(self.now, not_before or 0),
                created_at=self.now,
                max_attempts=each.stream.retry.max_attempts,
                not_before=not_before,
                event_id_given=each.envelope.event_id_given,
            )
            self._put(row)
            self.entry.bodies[row.position] = encode_body(each.envelope, each.stream.name)
        return duplicates

    def find_lost(self, settled: Sequence[Settlement], held: Sequence[Delivery]) -> set[int]:
        """Return the positions of the deliveries whose lease was lost."""
        needed = {(s.stream.name, s.position, s.token) for s in settled}
        needed.update((d.stream, d.position, d.token) for d in held)
        owns = self.events.owns
        return {position for stream, position, token in needed if not owns(stream, position, token)}

    def settle(self, settled: Sequence[Settlement], body: Callable[[EventRow], msgspec.Raw]) -> None:
        """Apply the outcomes of deliveries. This process must still own all of them."""
        queues: dict[tuple[str, str], None] = {}
        for each in sorted(settled, key=lambda s: (not isinstance(s.outcome, Release), s.position)):
            row = self._settle(each, body)
            if row.key is not None:
                queues[row.stream, row.key] = None
        for stream, key in queues:
            self.promote_head(stream, key)
        for token in {s.token for s in settled}:
            self._close_lease_if_empty(token)

    def _settle(self, each: Settlement, body: Callable[[EventRow], msgspec.Raw]) -> EventRow:
        if isinstance(each.outcome, Done):
            # The row leaves the index, so it can be changed without a copy.
            row = self.events.stream(each.stream.name).rows[each.position]
            self.before.setdefault(each.position, row)
            self.archive(row, "DONE", body(row))
            return row
        row = self._copy_row(each.stream.name, each.position)
        match each.outcome:
            case Release():
                row.status, row.attempt = PENDING, row.attempt - 1
                self._put(row, keeps_file=not row.cancel_requested)
            case Retry(after, code, message):
                self._schedule_again(row, self.now + (after or timedelta()).total_seconds(), code, message)
            case Defer(until, reason, after):
                row.attempt -= 1
                due = until.timestamp() if until else self.now + after.total_seconds()
                self._schedule_again(row, due, "deferred", reason)
                row.due_set_at = None if until else self.now
            case Dead(message, code):
                self._mark_dead(row, code, message, blocks=row.key is not None and each.stream.on_dead == "block")
        return row

    def select_claimable(self, stream: Stream, limit: int) -> list[EventRow]:
        """Return the rows that one claim may take, in order.

        An event that may have crashed a worker is claimed alone, so that only this event can cause the next crash.
        """
        index = self.events.stream(stream.name)
        if stream.name in self.events.pauses:
            return []
        found = self._due = index.pop_due(self.now, limit)
        if stream.ordered and index.unreadable:
            # The key of an unreadable event is not known, so no later event that has a key may run before it.
            barrier = min(index.unreadable)
            found = self._due = [row for row in found if row.key is None or row.position < barrier]
        suspect = bool(found) and found[0].crash_count > 0
        heads = found[:1] if suspect else [row for row in found if row.crash_count == 0]
        per_head = 1 if suspect or not heads else -(-limit // len(heads))
        taken: list[EventRow] = []
        for head in heads:
            if len(taken) >= limit:
                break
            if head.key is None:
                taken.append(head)
            else:
                taken += index.head_with_followers(head, min(per_head, limit - len(taken)), self.now)
        return taken

    def put_back_unclaimed(self, stream: Stream) -> None:
        """Put back the due events that were not claimed."""
        self.events.stream(stream.name).put_back(self._due)

    def claim(self, stream: str, rows: Sequence[EventRow], worker: str, lease: timedelta) -> list[EventRow]:
        """Put rows under one new lease. Its token is the offset of this entry."""
        self._add_lease(
            Lease(
                token=self.offset,
                worker=worker,
                stream=stream,
                positions=[row.position for row in rows],
                claimed_at=self.now,
                expires_at=_to_iso(self.now + lease.total_seconds()),
                expires=boot_clock() + lease.total_seconds(),
                boot=self._boot,
                process=own_process(),
            )
        )
        claimed = []
        for old in rows:
            row = replace(old, status=PROCESSING, token=self.offset, attempt=old.attempt + 1, last_attempt_at=self.now)
            if row.error_code in FILE_PROBLEMS:
                # The file is usable again.
                row.error_code = row.error_message = None
            self.before.setdefault(old.position, old)
            self._put(row, keeps_file=True)
            claimed.append(row)
        return claimed

    def reap(self, lease: Lease) -> int:
        """Requeue the events of an expired lease, and return their number.

        The crash count of an event grows the first time its lease expires. After that it grows only if the event was
        alone in its lease, because otherwise another event may have crashed the worker.
        """
        alone, requeued = len(lease.positions) == 1, 0
        for position in sorted(self.events.in_flight.get(lease.token, ())):
            if self.events.owns(lease.stream, position, lease.token):
                row = self._copy_row(lease.stream, position)
                row.status = PENDING
                row.error_code = "lease_lost"
                row.error_message = "the lease expired: its worker died or stalled"
                row.due, row.due_set_at = (self.now if row.due is not None else None), self.now
                row.crash_count += alone or row.crash_count == 0
                self._put(row)
                requeued += 1
        self._close_lease(lease.token)
        return requeued

    def cancel(self, row: EventRow, actor: str, *, blocks: bool) -> bool:
        """End a waiting event as DEAD and return True. If the event runs, ask its worker to end it and return False."""
        row = self._copy_row(row.stream, row.position)
        if row.status == PROCESSING:
            lease = self.events.leases[row.token]
            lease = replace(lease, cancelled=sorted({*lease.cancelled, row.position}))
            self._add_lease(lease)
            row.cancel_requested = True
            self._put(row, keeps_file=True)
            return False
        was_head = row.due is not None
        self._mark_dead(row, "cancelled", f"cancelled by {actor}", blocks=blocks and was_head and row.key is not None)
        if row.key is not None:
            self.promote_head(row.stream, row.key)
        return True

    def redrive(self, dead: EventRow, actor: str) -> None:
        """Make a dead letter PENDING again.

        It gets its old position in the queue of its key, but runs only after the events of the key that are in flight.
        """
        row = self._copy_row(dead.stream, dead.position)
        self._add_history(
            row,
            "redriven",
            actor,
            attempts=row.attempt,
            crashes=row.crash_count,
            died_at=_to_iso(row.processed_at or 0),
            code=row.error_code,
            message=row.error_message,
        )
        row.status, row.processed_at, row.attempt, row.crash_count = PENDING, None, 0, 0
        row.cancel_requested, row.blocks, row.error_code, row.error_message = False, False, None, None
        row.due, row.due_set_at = (self.now if row.key is None else None), self.now
        self._put(row)
        if row.key is None:
            return
        queue = self.events.stream(row.stream).queues[row.key]
        if queue.head is not None and queue.head > row.position and not queue.in_flight and queue.blocked_by is None:
            later = self._copy_row(row.stream, queue.head)
            later.due = None
            self._put(later)
        self.promote_head(row.stream, row.key, keeps_file=False)

    def discard(self, dead: EventRow, reason: str, actor: str, body: msgspec.Raw) -> None:
        """Archive a dead letter as discarded, and unblock its queue."""
        row = self._copy_row(dead.stream, dead.position)
        self._add_history(row, "discarded", actor, reason=reason)
        self.archive(row, "DISCARDED", body)
        if row.key is not None:
            self.promote_head(row.stream, row.key)

    def patch(self, dead: EventRow, body: msgspec.Raw, earlier: Any, actor: str) -> None:
        """Replace the payload of a dead letter and keep the old one in its history."""
        row = self._copy_row(dead.stream, dead.position)
        self._add_history(row, "patched", actor, payload=earlier)
        self._put(row)
        self.entry.bodies[row.position] = body

    def postpone(self, row: EventRow, code: str, reason: str, *, again: float) -> float:
        """Read an unusable file again after `again` seconds. Return how many seconds its event has waited so far."""
        row = self._copy_row(row.stream, row.position)
        # The wait began at `last_attempt_at`. An event that was unreadable when its stream was loaded already has an
        # error code, but no `last_attempt_at`.
        if row.error_code != code or row.last_attempt_at is None:
            row.last_attempt_at = self.now
        row.error_code, row.error_message = code, reason
        # An event behind the head of its key still has no due time.
        row.due, row.due_set_at = (None if row.due is None else self.now + again), self.now
        self._put(row, keeps_file=True)
        return self.now - row.last_attempt_at

    def give_up(self, row: EventRow, code: str, reason: str, *, blocks: bool) -> None:
        """End an event with a damaged file as DEAD, and do not change the content of the file."""
        row = self._copy_row(row.stream, row.position)
        self._mark_dead(row, code, reason, blocks=blocks and row.key is not None)
        self.unchanged_files.add(row.position)
        if row.key is not None:
            self.promote_head(row.stream, row.key)

    def withdraw(self, row: EventRow) -> None:
        """Remove an event whose file a person has removed."""
        self.before.setdefault(row.position, row)
        self.entry.vanished.append((row.stream, row.position))
        self.events.remove(row.stream, row.position)
        if row.key is not None:
            self.promote_head(row.stream, row.key)

    def import_event(self, row: EventRow, body: msgspec.Raw) -> None:
        """Add an event of another store, in the state in which it was exported."""
        self._put(row)
        self.entry.bodies[row.position] = body

    def block_queue(self, dead: EventRow) -> None:
        """Let a dead letter block the queue of its key."""
        row = self._copy_row(dead.stream, dead.position)
        row.blocks = True
        self._put(row)

    def archive(self, row: EventRow, status: str, body: msgspec.Raw) -> None:
        """Move an event from its stream into the archive file of the day."""
        row.processed_at = self.now
        line = encode_archive_line(self.offset, row, status, body)
        ended = EndedEvent(row.stream, row.position, row.event_id, self._day, line, row.event_id_given)
        self.entry.ended.append(ended)
        self._rows.pop(row.position, None)
        self.events.remove(row.stream, row.position)

    def promote_head(self, stream: str, key: str, *, keeps_file: bool = True) -> None:
        """Choose a new head for a queue without a head. If `keeps_file`, the file of the new head is not rewritten."""
        head = self.events.stream(stream).next_head(key)
        if head is not None:
            row = self._copy_row(stream, head.position)
            row.due, row.due_set_at = max(self.now, row.not_before or 0), self.now
            self._put(row, keeps_file=keeps_file and row.position not in self._rows)

    @cached_property
    def _day(self) -> str:
        return f"{to_datetime(self.now):%Y%m%d}"

    def _schedule_again(self, row: EventRow, due: float, code: str, message: str) -> None:
        row.status, row.due, row.due_set_at, row.crash_count = PENDING, due, self.now, 0
        row.error_code, row.error_message = code, message
        self._put(row)

    def _mark_dead(self, row: EventRow, code: str, message: str, *, blocks: bool) -> None:
        row.status, row.processed_at, row.due, row.blocks = DEAD, self.now, None, blocks
        row.error_code, row.error_message = code, message
        self._put(row)

    def _add_history(self, row: EventRow, change: str, actor: str, **details: Any) -> None:
        row.history = [*(row.history or ()), {"what": change, "at": _to_iso(self.now), "actor": actor, **details}]

    def _copy_row(self, stream: str, position: int) -> EventRow:
        known = self.events.stream(stream).rows[position]
        self.before.setdefault(position, known)
        return replace(known)

    def _put(self, row: EventRow, *, keeps_file: bool = False) -> None:
        if keeps_file and row.position not in self._rows:
            self.unchanged_files.add(row.position)
        elif not keeps_file:
            self.unchanged_files.discard(row.position)
        self.before.setdefault(row.position, None)
        self._rows[row.position] = row
        self.events.put(row)

    def _add_lease(self, lease: Lease) -> None:
        self.entry.leases.append(lease)
        self.events.add_lease(lease)

    def _close_lease_if_empty(self, token: int) -> None:
        if token in self.events.leases and not self.events.in_flight.get(token):
            self._close_lease(token)

    def _close_lease(self, token: int) -> None:
        self.entry.closed.append(token)
        self.events.remove_lease(token)


def _to_iso(seconds: float) -> str:
    return to_datetime(seconds).isoformat()
