"""Operations on files: every repair is one entry of the journal, with a line in the log."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal
from uuid import UUID

import msgspec

from kingdom.backends.files.bodies import EndedEvent, body_of, maybe, moment
from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import DEAD, PENDING, PROCESSING, Pause, Row
from kingdom.backends.files.faults import translated
from kingdom.backends.files.log import read_log
from kingdom.backends.files.retention import retain
from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import (
    COUNT_LIMIT,
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
    """What an operator can ask of a FilesBus and do to it."""

    def __init__(self, bus: FilesBus) -> None:
        self._bus = bus
        self._store = bus.store

    async def stats(self) -> list[StreamStats]:
        """See the port."""
        return await self._bus.in_thread(self._stats)

    def _stats(self) -> list[StreamStats]:
        with self._store.exclusive() as draft:
            found = []
            for name in sorted({*self._store.stream_names(), *self._store.books.pauses}):
                book, pause = self._store.books.stream(name), self._store.books.pauses.get(name)
                if not book.rows and pause is None:
                    continue
                oldest = book.oldest_due(draft.now)
                found.append(
                    StreamStats(
                        stream=name,
                        pending=min(book.counts[PENDING], COUNT_LIMIT),
                        processing=book.counts[PROCESSING],
                        dead=min(book.counts[DEAD], COUNT_LIMIT),
                        oldest_pending_seconds=draft.now - oldest.created_at if oldest else 0.0,
                        paused=pause.reason if pause else None,
                    )
                )
            return found

    async def situations(self, event_id: UUID) -> list[Situation]:
        """See the port."""
        return await asyncio.to_thread(self._situations, str(event_id))

    def _situations(self, event_id: str) -> list[Situation]:
        with translated():
            with self._store.exclusive() as draft:
                names = self._store.stream_names()
                books = map(self._store.books.stream, names)
                rows = [book.rows[book.by_event[event_id]] for book in books if event_id in book.by_event]
                found = [self._situation(row, draft.now) for row in rows]
            # Nobody waits for the long files of what has ended: they only grow, and what came since does not count.
            for name in names:
                lines = self._store.tree.ended_events(name, event_id)
                found += [_ended(name, line, draft.now) for line in lines if line.n < draft.place]
        return sorted(found, key=lambda situation: situation.stream)

    def _situation(self, row: Row, now: float) -> Situation:
        books = self._store.books
        book, pause = books.stream(row.stream), books.pauses.get(row.stream)
        lease = books.leases.get(row.token) if row.status == PROCESSING else None
        line = book.lines.get(row.key) if row.key is not None and row.status != DEAD else None
        ahead = book.rows[line.head] if line and line.head not in (None, row.position) and row.due is None else None
        barrier = book.rows[line.blocked_by] if line and line.blocked_by is not None else None
        envelope = self._envelope(row)
        return Situation(
            event_id=UUID(row.event_id),
            stream=row.stream,
            type=envelope.type,
            status=row.status,  # type: ignore[arg-type]
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            crash_count=row.crash_count,
            now=moment(now),
            due_at=maybe(row.due),
            partition_key=envelope.partition_key,
            processed_at=maybe(row.processed_at),
            error_code=row.error_code,
            error_message=row.error_message,
            paused_since=moment(pause.since) if pause else None,
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
        """See the port."""

        def pause(draft: Draft) -> None:
            known = draft.books.pauses.get(stream)
            paused = Pause(stream, reason, actor, known.since if known else draft.now)
            draft.entry.pauses.append(paused)
            draft.books.pauses[stream] = paused

        await self._change("stream.paused", actor, {"stream": stream, "reason": reason}, pause)

    async def resume(self, stream: str, *, actor: str) -> bool:
        """See the port."""

        def resume(draft: Draft) -> None:
            if stream not in draft.books.pauses:
                # What did not happen is not logged either.
                raise NotFound(stream)
            draft.entry.resumed.append(stream)
            del draft.books.pauses[stream]

        try:
            await self._change("stream.resumed", actor, {"stream": stream}, resume)
        except NotFound:
            return False
        self._bus.nudge([stream])
        return True

    async def dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        """See the port."""
        return await self._bus.in_thread(lambda: self._dead_letters(which, limit))

    def _dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        with self._store.exclusive():
            streams = [which.stream] if which.stream else self._store.stream_names()
            books = [self._store.books.stream(stream) for stream in streams]
            rows = [book.rows[position] for book in books for position in book.dead if position > which.after]
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

    def _dead_letter(self, row: Row) -> DeadLetter:
        envelope = self._envelope(row)
        return DeadLetter(
            event_id=UUID(row.event_id),
            stream=row.stream,
            type=envelope.type,
            partition_key=envelope.partition_key,
            attempt=row.attempt,
            error_code=row.error_code,
            error_message=row.error_message,
            created_at=moment(row.created_at),
            died_at=moment(row.processed_at or 0),
            position=row.position,
            envelope=envelope.to_wire(),
            history=tuple(row.history or ()),
        )

    async def patch(self, event_id: UUID, stream: str, payload: Mapping[str, Any], *, actor: str) -> None:
        """See the port."""
        refuse_unstorable("payload", payload)

        def patch(draft: Draft) -> None:
            book = draft.books.stream(stream)
            row = book.rows.get(book.by_event.get(str(event_id), -1))
            if row is None or row.status != DEAD:
                raise NotFound(f"event {event_id} is no dead letter of stream {stream}: see `kingdom bus dead list`")
            self._refuse_unreadable(row)
            envelope = self._envelope(row)
            patched = msgspec.structs.replace(envelope, payload=payload)
            draft.patch(row, body_of(patched, stream), envelope.payload, actor)

        await self._change("dead_letter.patched", actor, {"event_id": str(event_id), "stream": stream}, patch)

    async def redrive(self, positions: Sequence[int], *, actor: str) -> list[UUID]:
        """See the port."""

        def redrive(draft: Draft, row: Row) -> None:
            self._refuse_unreadable(row)
            draft.redrive(row, actor)

        return await self._each_dead(positions, "dead_letter.redriven", actor, {}, redrive)

    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        """See the port."""
        return await self._each_dead(
            positions,
            "dead_letter.discarded",
            actor,
            {"reason": reason},
            lambda draft, row: draft.discard(row, reason, actor, self._store.body(row)),
        )

    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        """See the port."""
        blocks = self._bus.topology.stream(stream).on_dead == "block"

        def cancel(draft: Draft) -> bool:
            book = draft.books.stream(stream)
            row = book.rows.get(book.by_event.get(str(event_id), -1))
            if row is None or row.status == DEAD:
                raise NotFound(f"event {event_id} is not open in stream {stream}: it has ended, or never was there")
            return draft.cancel(row, actor, blocks=blocks)

        data = {"event_id": str(event_id), "stream": stream}
        return "cancelled" if await self._change("event.cancelled", actor, data, cancel) else "requested"

    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        """See the port."""

        def read() -> list[LoggedEntry]:
            with translated(), ExitStack() as held:
                held.enter_context(self._store.shared())
                return read_log(self._store.layout, after, limit, about, let_go=held.close)

        # In a thread of its own, as below: who looks for one thing reads months of it.
        return await asyncio.to_thread(read)

    async def log_end(self) -> LogCursor:
        """See the port."""

        def end() -> LogCursor:
            with self._store.shared():
                # Claims are not waited for: a loss of power could give their places to entries of the log.
                self._store.journal.sync()
                return LogCursor(self._store.journal.end, 0) if self._store.books.log_sequence else LogCursor()

        return await self._bus.in_thread(end)

    async def retain(self, retention: Retention) -> RetentionReport:
        """See the port."""
        # In a thread of its own: a million dedup keys take seconds to look through, and nobody shall wait for that.
        return await asyncio.to_thread(retain, self._store, retention)

    async def pins(self) -> list[Pin]:
        """See the port: files have no old versions that anything could keep."""
        return []

    async def _each_dead(
        self,
        positions: Sequence[int],
        what: str,
        actor: str,
        details: Mapping[str, Any],
        act: Callable[[Draft, Row], None],
    ) -> list[UUID]:
        """Do the same to every one of these that is still DEAD, each in an entry of its own."""
        changed = []
        for row in await self._bus.in_thread(lambda: self._dead_rows(positions)):

            def act_on(draft: Draft, row: Row = row) -> None:
                known = draft.books.stream(row.stream).rows.get(row.position)
                if known is None or known.status != DEAD:
                    raise NotFound(f"event {row.event_id} is no dead letter any more")
                act(draft, known)

            # Somebody else was faster: nothing happened, so nothing is told.
            with suppress(NotFound):
                data = {"event_id": row.event_id, "stream": row.stream, **details}
                await self._change(what, actor, data, act_on)
                changed.append(UUID(row.event_id))
                self._bus.nudge([row.stream])
        return changed

    def _dead_rows(self, positions: Sequence[int]) -> list[Row]:
        with self._store.exclusive():
            books = [self._store.books.stream(name) for name in self._store.stream_names()]
            wanted = sorted(set(positions))
            return [book.rows[p] for p in wanted for book in books if p in book.dead]

    async def _change(self, what: str, actor: str, data: Mapping[str, Any], act: Callable[[Draft], Any]) -> Any:
        def change() -> Any:
            with self._store.exclusive() as draft:
                answer = act(draft)
                entry = LogEntry(type=what, actor=actor, data=data)
                draft.say(entry)
                self._store.commit(draft)
                return answer

        return await self._bus.in_thread(change)

    def _refuse_unreadable(self, row: Row) -> None:
        if self._store.tree.body(row) is None:
            raise MalformedEvent(f"event {row.event_id} cannot be read: mend {self._store.tree.event_path(row)} first")

    def _envelope(self, row: Row) -> Envelope:
        """Return an event's envelope, or one that tells why it cannot be read."""
        try:
            return self._store.tree.read_event(row)[0]
        except (OSError, MalformedEvent) as error:
            payload = {"unreadable": str(error)}
            return Envelope(type="?", event_id=UUID(row.event_id), stream=row.stream, payload=payload)


def _ended(stream: str, line: EndedEvent, now: float) -> Situation:
    event: Any = line.event
    return Situation(
        event_id=UUID(event["eventId"]),
        stream=stream,
        type=event.get("type", "?"),
        status=line.status,  # type: ignore[arg-type]
        attempt=line.attempts,
        max_attempts=line.max_attempts,
        crash_count=line.crashes,
        now=moment(now),
        partition_key=event.get("partitionKey"),
        processed_at=line.ended_at,
        error_code=line.error.code if line.error else None,
        error_message=line.error.message if line.error else None,
    )
