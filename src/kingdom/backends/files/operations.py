"""Operations on a store of files. Every change by an operator is one journal entry and one line in the log."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.journal.entry import DEAD, PENDING, PROCESSING, EventRow, StreamPause
from kingdom.backends.files.retention import retain
from kingdom.backends.files.system.faults import translate_errors
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.file_formats import ArchiveLine, encode_body, to_datetime, to_datetime_or_none
from kingdom.backends.files.tree.log import read_log
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import (
    COUNT_LIMIT,
    STREAM_PAUSED,
    STREAM_RESUMED,
    DeadFilter,
    DeadLetter,
    Operations,
    Pin,
    Retention,
    RetentionReport,
    Situation,
    StreamStats,
)
from kingdom.bus.record import refuse_unstorable
from kingdom.errors import MalformedEvent, NotFound


class FilesOperations(Operations):
    """The operations of a FilesBus for operators."""

    def __init__(self, bus: FilesBus) -> None:
        self._bus = bus
        self._store = bus.store

    async def stats(self) -> list[StreamStats]:
        """See `Operations.stats`."""
        return await self._bus.run_in_thread(self._stats)

    def _stats(self) -> list[StreamStats]:
        with self._store.exclusive() as plan:
            found = []
            for name in sorted({*self._store.stream_names(), *self._store.events.pauses}):
                index, pause = self._store.events.stream(name), self._store.events.pauses.get(name)
                if not index.rows and pause is None:
                    continue
                oldest = index.oldest_due(plan.now)
                found.append(
                    StreamStats(
                        stream=name,
                        pending=min(index.counts[PENDING], COUNT_LIMIT),
                        processing=index.counts[PROCESSING],
                        dead=min(index.counts[DEAD], COUNT_LIMIT),
                        oldest_pending_seconds=plan.now - oldest.created_at if oldest else 0.0,
                        paused=pause.reason if pause else None,
                    )
                )
            return found

    async def situations(self, event_id: UUID) -> list[Situation]:
        """See `Operations.situations`."""
        return await asyncio.to_thread(self._situations, str(event_id))

    def _situations(self, event_id: str) -> list[Situation]:
        with translate_errors():
            with self._store.exclusive() as plan:
                names = self._store.stream_names()
                indexes = map(self._store.events.stream, names)
                rows = [index.rows[index.by_event[event_id]] for index in indexes if event_id in index.by_event]
                found = [self._situation(row, plan.now) for row in rows]
            # Read the archives without the lock, because they are long. They only grow, and newer lines are ignored.
            for name in names:
                lines = self._store.tree.read_archive(name, event_id)
                found += [_archived_situation(name, line, plan.now) for line in lines if line.n < plan.offset]
        return sorted(found, key=lambda situation: situation.stream)

    def _situation(self, row: EventRow, now: float) -> Situation:
        events = self._store.events
        index, pause = events.stream(row.stream), events.pauses.get(row.stream)
        lease = events.leases.get(row.token) if row.status == PROCESSING else None
        queue = index.queues.get(row.key) if row.key is not None and row.status != DEAD else None
        ahead = index.rows[queue.head] if queue and queue.head not in (None, row.position) and row.due is None else None
        barrier = index.rows[queue.blocked_by] if queue and queue.blocked_by is not None else None
        envelope = self._envelope(row)
        return Situation(
            event_id=UUID(row.event_id),
            stream=row.stream,
            type=envelope.type,
            status=row.status,  # type: ignore[arg-type] # one of the statuses
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            crash_count=row.crash_count,
            now=to_datetime(now),
            due_at=to_datetime_or_none(row.due),
            partition_key=envelope.partition_key,
            processed_at=to_datetime_or_none(row.processed_at),
            error_code=row.error_code,
            error_message=row.error_message,
            paused_since=to_datetime(pause.since) if pause else None,
            paused_reason=pause.reason if pause else None,
            paused_by=pause.actor if pause else None,
            worker=lease.worker if lease else None,
            lease_until=self._bus.lease_until(lease) if lease else None,
            cancel_requested=row.cancel_requested and lease is not None,
            ahead_event_id=UUID(ahead.event_id) if ahead else None,
            ahead_status=ahead.status if ahead else None,
            blocked_by_event_id=UUID(barrier.event_id) if barrier else None,
        )

    async def pause(self, stream: str, *, reason: str, actor: str) -> None:
        """See `Operations.pause`."""

        def pause(plan: TransactionPlan) -> None:
            known = plan.events.pauses.get(stream)
            paused = StreamPause(stream, reason, actor, known.since if known else plan.now)
            plan.entry.pauses.append(paused)
            plan.events.pauses[stream] = paused

        await self._change(STREAM_PAUSED, actor, {"stream": stream, "reason": reason}, pause)

    async def resume(self, stream: str, *, actor: str) -> bool:
        """See `Operations.resume`."""

        def resume(plan: TransactionPlan) -> None:
            if stream not in plan.events.pauses:
                # The stream is not paused, so log nothing.
                raise NotFound(stream)
            plan.entry.resumed.append(stream)
            del plan.events.pauses[stream]

        try:
            await self._change(STREAM_RESUMED, actor, {"stream": stream}, resume)
        except NotFound:
            return False
        self._bus.nudge([stream])
        return True

    async def dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        """See `Operations.dead_letters`."""
        return await self._bus.run_in_thread(lambda: self._dead_letters(which, limit))

    def _dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        with self._store.exclusive():
            streams = [which.stream] if which.stream else self._store.stream_names()
            indexes = [self._store.events.stream(stream) for stream in streams]
            rows = [index.rows[position] for index in indexes for position in index.dead if position > which.after]
            found: list[DeadLetter] = []
            for row in sorted(rows, key=lambda row: row.position):
                if len(found) >= limit:
                    break
                if which.code not in (None, row.error_code) or which.event_id not in (None, UUID(row.event_id)):
                    continue
                letter = self._dead_letter(row)
                if which.type in (None, letter.type):
                    found.append(letter)
            return found

    def _dead_letter(self, row: EventRow) -> DeadLetter:
        envelope = self._envelope(row)
        return DeadLetter(
            event_id=UUID(row.event_id),
            stream=row.stream,
            type=envelope.type,
            partition_key=envelope.partition_key,
            attempt=row.attempt,
            error_code=row.error_code,
            error_message=row.error_message,
            created_at=to_datetime(row.created_at),
            died_at=to_datetime(row.processed_at or 0),
            position=row.position,
            envelope=envelope.to_wire(),
            history=tuple(row.history or ()),
        )

    async def patch(self, event_id: UUID, stream: str, payload: Mapping[str, Any], *, actor: str) -> None:
        """See `Operations.patch`."""
        refuse_unstorable("payload", payload)

        def patch(plan: TransactionPlan) -> None:
            index = plan.events.stream(stream)
            row = index.rows.get(index.by_event.get(str(event_id), -1))
            if row is None or row.status != DEAD:
                raise NotFound(f"event {event_id} is not a dead letter of stream {stream}: see `kingdom bus dead list`")
            self._refuse_unreadable(row)
            envelope = self._envelope(row)
            patched = msgspec.structs.replace(envelope, payload=payload)
            plan.patch(row, encode_body(patched, stream), envelope.payload, actor)

        await self._change("dead_letter.patched", actor, {"event_id": str(event_id), "stream": stream}, patch)

    async def redrive(self, positions: Sequence[int], *, actor: str) -> list[UUID]:
        """See `Operations.redrive`."""

        def redrive(plan: TransactionPlan, row: EventRow) -> None:
            self._refuse_unreadable(row)
            plan.redrive(row, actor)

        return await self._each_dead(positions, "dead_letter.redriven", actor, {}, redrive)

    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        """See `Operations.discard`."""
        return await self._each_dead(
            positions,
            "dead_letter.discarded",
            actor,
            {"reason": reason},
            lambda plan, row: plan.discard(row, reason, actor, self._store.take_body(row)),
        )

    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        """See `Operations.cancel`."""
        blocks = self._bus.topology.stream(stream).on_dead == "block"

        def cancel(plan: TransactionPlan) -> bool:
            index = plan.events.stream(stream)
            row = index.rows.get(index.by_event.get(str(event_id), -1))
            if row is None or row.status == DEAD:
                raise NotFound(f"event {event_id} is not open in stream {stream}: it has ended or was never there")
            return plan.cancel(row, actor, blocks=blocks)

        data = {"event_id": str(event_id), "stream": stream}
        return "cancelled" if await self._change("event.cancelled", actor, data, cancel) else "requested"

    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        """See `Operations.read_log`."""

        def read() -> list[LoggedEntry]:
            with translate_errors(), ExitStack() as held:
                held.enter_context(self._store.shared())
                return read_log(self._store.layout, after, limit, about, release=held.close)

        # Use another thread than the bus, because a search may read months of log.
        return await asyncio.to_thread(read)

    async def log_end(self) -> LogCursor:
        """See `Operations.log_end`."""

        def end() -> LogCursor:
            with self._store.shared():
                # Sync the claims too. If a power loss removed them, later log entries would get their offsets.
                self._store.journal.sync()
                last = self._store.events.log_sequence
                return LogCursor(self._store.journal.end, last) if last else LogCursor()

        return await self._bus.run_in_thread(end)

    async def keeps_log_after(self, cursor: LogCursor) -> bool:
        """See `Operations.keeps_log_after`."""
        if cursor == LogCursor():
            return True
        oldest, end = await self.read_log(LogCursor(), 1), await self.log_end()
        # The numbers of a store of files have no gaps.
        return bool(oldest) and oldest[0].cursor.sequence - 1 <= cursor.sequence <= end.sequence

    async def log_lag(self) -> timedelta:
        """See `Operations.log_lag`. A store of files has no open transactions that have written."""
        return timedelta()

    async def retain(self, retention: Retention) -> RetentionReport:
        """See `Operations.retain`."""
        # Use another thread than the bus, because scanning a million dedup keys takes seconds.
        return await asyncio.to_thread(retain, self._store, retention)

    async def pins(self) -> list[Pin]:
        """See `Operations.pins`. A store of files has no row versions."""
        return []

    async def _each_dead(
        self,
        positions: Sequence[int],
        entry_type: str,
        actor: str,
        details: Mapping[str, Any],
        act: Callable[[TransactionPlan, EventRow], None],
    ) -> list[UUID]:
        """Change each of these events that is still DEAD. Each change is a separate journal entry."""
        changed = []
        for row in await self._bus.run_in_thread(lambda: self._dead_rows(positions)):

            def act_on(plan: TransactionPlan, row: EventRow = row) -> None:
                known = plan.events.stream(row.stream).rows.get(row.position)
                if known is None or known.status != DEAD:
                    raise NotFound(f"event {row.event_id} is no longer a dead letter")
                act(plan, known)

            # If another operator has already changed this event, nothing changes here and nothing is logged.
            with suppress(NotFound):
                data = {"event_id": row.event_id, "stream": row.stream, **details}
                await self._change(entry_type, actor, data, act_on)
                changed.append(UUID(row.event_id))
                self._bus.nudge([row.stream])
        return changed

    def _dead_rows(self, positions: Sequence[int]) -> list[EventRow]:
        with self._store.exclusive():
            indexes = [self._store.events.stream(name) for name in self._store.stream_names()]
            wanted = sorted(set(positions))
            return [index.rows[p] for p in wanted for index in indexes if p in index.dead]

    async def _change(
        self, entry_type: str, actor: str, data: Mapping[str, Any], act: Callable[[TransactionPlan], Any]
    ) -> Any:
        def change() -> Any:
            with self._store.exclusive() as plan:
                answer = act(plan)
                entry = LogEntry(type=entry_type, actor=actor, data=data)
                plan.log(entry)
                self._store.commit(plan)
                return answer

        return await self._bus.run_in_thread(change)

    def _refuse_unreadable(self, row: EventRow) -> None:
        if self._store.tree.read_body(row) is None:
            raise MalformedEvent(f"cannot read event {row.event_id}: fix {self._store.tree.event_path(row)} first")

    def _envelope(self, row: EventRow) -> Envelope:
        """Return the envelope of an event, or a substitute that says why it cannot be read."""
        try:
            return self._store.tree.read_event(row)[0]
        except (OSError, MalformedEvent) as error:
            payload = {"unreadable": str(error)}
            return Envelope(type="?", event_id=UUID(row.event_id), stream=row.stream, payload=payload)


def _archived_situation(stream: str, line: ArchiveLine, now: float) -> Situation:
    event: Any = line.event
    return Situation(
        event_id=UUID(event["eventId"]),
        stream=stream,
        type=event.get("type", "?"),
        status=line.status,  # type: ignore[arg-type] # one of the statuses
        attempt=line.attempts,
        max_attempts=line.max_attempts,
        crash_count=line.crashes,
        now=to_datetime(now),
        partition_key=event.get("partitionKey"),
        processed_at=line.ended_at,
        error_code=line.error.code if line.error else None,
        error_message=line.error.message if line.error else None,
    )
