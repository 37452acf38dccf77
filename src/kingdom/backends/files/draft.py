"""The next entry while it is made: every decision about events, on the books alone. No file is touched here.

Books and entry change together; where something fails in between, the store reads the books anew.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from kingdom.backends.files.bodies import body_of, ended_line, moment
from kingdom.backends.files.books import Books
from kingdom.backends.files.entry import (
    DAMAGED,
    DEAD,
    MISSING,
    PENDING,
    PROCESSING,
    UNREADABLE,
    Ended,
    Entry,
    Lease,
    Row,
)
from kingdom.backends.files.lock import boot_clock, own_process
from kingdom.bus.delivery import Delivery
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Dead, Defer, Done, Release, Retry
from kingdom.bus.port import EventCopy, Settlement
from kingdom.bus.stream import Stream

# An editor takes no longer to put a file back.
SPOILT_SECONDS = 2.0
SPOILT = frozenset({MISSING, DAMAGED, UNREADABLE})


class Draft:
    """One entry in the making at a place in the journal and a moment in time."""

    def __init__(self, books: Books, place: int, now: float, boot: str) -> None:
        self.books = books
        self.place = place
        self.now = now
        self.entry = Entry()
        # How things were before, which only the files need to know.
        self.before: dict[int, Row | None] = {}
        # Changed rows whose file stays as it is, apart from its directory.
        self.quiet: set[int] = set()
        self.said: list[LogEntry] = []
        self._boot = boot
        self._rows: dict[int, Row] = {}
        self._found: list[Row] = []

    def finish(self) -> Entry:
        """Return the entry with everything that was noted."""
        self.entry.rows = list(self._rows.values())
        return self.entry

    def say(self, *entries: LogEntry) -> None:
        """Add to the log."""
        self.said += entries

    def publish(self, copies: Sequence[EventCopy]) -> list[EventCopy]:
        """Enqueue copies, each at a position of its own; returns those that their stream had already."""
        duplicates = []
        for each in copies:
            book, event_id = self.books.stream(each.stream.name), str(each.envelope.event_id)
            if event_id in book.by_event:
                duplicates.append(each)
                continue
            key = each.envelope.partition_key if each.stream.ordered else None
            not_before = each.at.timestamp() if each.at else None
            row = Row(
                stream=each.stream.name,
                # Each body makes the entry longer, so no position reaches into the next entry.
                position=self.place + len(self.entry.bodies),
                event_id=event_id,
                key=key,
                status=PENDING,
                due=None if key is not None and key in book.lines else max(self.now, not_before or 0),
                created_at=self.now,
                max_attempts=each.stream.retry.max_attempts,
                not_before=not_before,
                event_id_given=each.envelope.event_id_given,
            )
            self._note(row)
            self.entry.bodies[row.position] = body_of(each.envelope, each.stream.name)
        return duplicates

    def lost(self, settled: Sequence[Settlement], held: Sequence[Delivery]) -> set[int]:
        """Return the positions that are not under their token any more."""
        needed = {(s.stream.name, s.position, s.token) for s in settled}
        needed.update((d.stream, d.position, d.token) for d in held)
        owns = self.books.owns
        return {position for stream, position, token in needed if not owns(stream, position, token)}

    def settle(self, settled: Sequence[Settlement], body: Callable[[Row], msgspec.Raw]) -> None:
        """Write down what became of deliveries, all of which are still ours."""
        lines: dict[tuple[str, str], None] = {}
        for each in sorted(settled, key=lambda s: (not isinstance(s.outcome, Release), s.position)):
            row = self._settle(each, body)
            if row.key is not None:
                lines[row.stream, row.key] = None
        for stream, key in lines:
            self.promote(stream, key)
        for token in {s.token for s in settled}:
            self._close_if_empty(token)

    def _settle(self, each: Settlement, body: Callable[[Row], msgspec.Raw]) -> Row:
        if isinstance(each.outcome, Done):
            # Nothing comes after it, so nothing is copied.
            row = self.books.stream(each.stream.name).rows[each.position]
            self.before.setdefault(each.position, row)
            self.end(row, "DONE", body(row))
            return row
        row = self._change(each.stream.name, each.position)
        match each.outcome:
            case Release():
                row.status, row.attempt = PENDING, row.attempt - 1
                self._note(row, quiet=not row.cancel_requested)
            case Retry(after, code, message):
                self._again(row, self.now + (after or timedelta()).total_seconds(), code, message)
            case Defer(until, reason, after):
                row.attempt -= 1
                due = until.timestamp() if until else self.now + after.total_seconds()
                self._again(row, due, "deferred", reason)
                row.due_set_at = None if until else self.now
            case Dead(message, code):
                self._die(row, code, message, blocks=row.key is not None and each.stream.on_dead == "block")
        return row

    def claimable(self, stream: Stream, limit: int) -> list[Row]:
        """Return the rows that one claim may take, in order; a suspect comes alone."""
        book = self.books.stream(stream.name)
        if stream.name in self.books.pauses:
            return []
        found = self._found = book.take_due(self.now, limit)
        if stream.ordered and book.unreadable:
            # One that cannot be read may be the first of any key: nothing behind it may overtake it.
            barrier = min(book.unreadable)
            found = self._found = [row for row in found if row.key is None or row.position < barrier]
        suspect = bool(found) and found[0].crash_count > 0
        heads = found[:1] if suspect else [row for row in found if row.crash_count == 0]
        each = 1 if suspect or not heads else -(-limit // len(heads))
        taken: list[Row] = []
        for head in heads:
            if len(taken) >= limit:
                break
            if head.key is None:
                taken.append(head)
            else:
                taken += book.run_from(head, min(each, limit - len(taken)), self.now)
        return taken

    def put_back(self, stream: Stream) -> None:
        """Let everything be found again that was claimable and has not been claimed."""
        self.books.stream(stream.name).put_back(self._found)

    def claim(self, stream: str, rows: Sequence[Row], worker: str, lease: timedelta) -> list[Row]:
        """Put rows under one new lease; the token is the place of this entry."""
        self._hold(
            Lease(
                token=self.place,
                worker=worker,
                stream=stream,
                positions=[row.position for row in rows],
                claimed_at=self.now,
                expires_at=_text(self.now + lease.total_seconds()),
                expires=boot_clock() + lease.total_seconds(),
                boot=self._boot,
                process=own_process(),
            )
        )
        claimed = []
        for old in rows:
            row = replace(old, status=PROCESSING, token=self.place, attempt=old.attempt + 1, last_attempt_at=self.now)
            if row.error_code in SPOILT:
                # Its file is there again.
                row.error_code = row.error_message = None
            self.before.setdefault(old.position, old)
            self._note(row, quiet=True)
            claimed.append(row)
        return claimed

    def reap(self, lease: Lease) -> int:
        """Give back what an expired lease still holds; only the first loss, and those alone, count against an event."""
        alone, given_back = len(lease.positions) == 1, 0
        for position in sorted(self.books.flying.get(lease.token, ())):
            if self.books.owns(lease.stream, position, lease.token):
                row = self._change(lease.stream, position)
                row.status = PENDING
                row.error_code = "lease_lost"
                row.error_message = "the lease expired: its worker died or stalled"
                row.due, row.due_set_at = (self.now if row.due is not None else None), self.now
                row.crash_count += alone or row.crash_count == 0
                self._note(row)
                given_back += 1
        self._close(lease.token)
        return given_back

    def cancel(self, row: Row, actor: str, *, blocks: bool) -> bool:
        """End a waiting event as DEAD; False where it runs, and its worker is asked instead."""
        row = self._change(row.stream, row.position)
        if row.status == PROCESSING:
            lease = self.books.leases[row.token]
            lease = replace(lease, cancelled=sorted({*lease.cancelled, row.position}))
            self._hold(lease)
            row.cancel_requested = True
            self._note(row, quiet=True)
            return False
        was_head = row.due is not None
        self._die(row, "cancelled", f"cancelled by {actor}", blocks=blocks and was_head and row.key is not None)
        if row.key is not None:
            self.promote(row.stream, row.key)
        return True

    def redrive(self, dead: Row, actor: str) -> None:
        """Start a new round for a dead letter in its old place: as head where nothing runs, else after what does."""
        row = self._change(dead.stream, dead.position)
        self._remember(
            row,
            "redriven",
            actor,
            attempts=row.attempt,
            crashes=row.crash_count,
            died_at=_text(row.processed_at or 0),
            code=row.error_code,
            message=row.error_message,
        )
        row.status, row.processed_at, row.attempt, row.crash_count = PENDING, None, 0, 0
        row.cancel_requested, row.blocks, row.error_code, row.error_message = False, False, None, None
        row.due, row.due_set_at = (self.now if row.key is None else None), self.now
        self._note(row)
        if row.key is None:
            return
        book = self.books.stream(row.stream)
        line = book.lines[row.key]
        if line.head is not None and line.head > row.position and not line.flying and line.blocked_by is None:
            later = self._change(row.stream, line.head)
            later.due = None
            self._note(later)
        self.promote(row.stream, row.key, quiet=False)

    def discard(self, dead: Row, reason: str, actor: str, body: msgspec.Raw) -> None:
        """End a dead letter for good; a line that it blocked goes on."""
        row = self._change(dead.stream, dead.position)
        self._remember(row, "discarded", actor, reason=reason)
        self.end(row, "DISCARDED", body)
        if row.key is not None:
            self.promote(row.stream, row.key)

    def patch(self, dead: Row, body: msgspec.Raw, earlier: Any, actor: str) -> None:
        """Give a dead letter another payload and keep the earlier one in its history."""
        row = self._change(dead.stream, dead.position)
        self._remember(row, "patched", actor, payload=earlier)
        self._note(row)
        self.entry.bodies[row.position] = body

    def spoil(self, row: Row, code: str, reason: str, *, again: float = SPOILT_SECONDS) -> float:
        """Let an event wait whose file cannot be had, as while it is edited; returns for how long it has waited."""
        row = self._change(row.stream, row.position)
        # One that was unreadable when its stream was opened has a reason, and no moment.
        if row.error_code != code or row.last_attempt_at is None:
            row.last_attempt_at = self.now
        row.error_code, row.error_message = code, reason
        # One that waits in its line goes on waiting for its turn.
        row.due, row.due_set_at = (None if row.due is None else self.now + again), self.now
        self._note(row, quiet=True)
        return self.now - row.last_attempt_at

    def give_up(self, row: Row, code: str, reason: str) -> None:
        """End an event as DEAD whose file stays damaged; the file is kept as it is."""
        row = self._change(row.stream, row.position)
        self._die(row, code, reason, blocks=row.key is not None)
        self.quiet.add(row.position)

    def vanish(self, row: Row) -> None:
        """Forget an event whose file somebody has removed."""
        self.before.setdefault(row.position, row)
        self.entry.vanished.append((row.stream, row.position))
        self.books.remove(row.stream, row.position)
        if row.key is not None:
            self.promote(row.stream, row.key)

    def take_in(self, row: Row, body: msgspec.Raw) -> None:
        """Note an event of another store as it stood there."""
        self._note(row)
        self.entry.bodies[row.position] = body

    def block(self, dead: Row) -> None:
        """Let a dead letter keep its line from going on."""
        row = self._change(dead.stream, dead.position)
        row.blocks = True
        self._note(row)

    def end(self, row: Row, status: str, body: msgspec.Raw) -> None:
        """Take an event out of its stream into the file of the day."""
        row.processed_at = self.now
        line = ended_line(self.place, row, status, body)
        ended = Ended(row.stream, row.position, row.event_id, self._day, line, row.event_id_given)
        self.entry.ended.append(ended)
        self._rows.pop(row.position, None)
        self.books.remove(row.stream, row.position)

    def promote(self, stream: str, key: str, *, quiet: bool = True) -> None:
        """Let a line without a head have one; its file need not tell, since the order does."""
        head = self.books.stream(stream).next_head(key)
        if head is not None:
            row = self._change(stream, head.position)
            row.due, row.due_set_at = max(self.now, row.not_before or 0), self.now
            self._note(row, quiet=quiet and row.position not in self._rows)

    @cached_property
    def _day(self) -> str:
        return f"{moment(self.now):%Y%m%d}"

    def _again(self, row: Row, due: float, code: str, message: str) -> None:
        row.status, row.due, row.due_set_at, row.crash_count = PENDING, due, self.now, 0
        row.error_code, row.error_message = code, message
        self._note(row)

    def _die(self, row: Row, code: str, message: str, *, blocks: bool) -> None:
        row.status, row.processed_at, row.due, row.blocks = DEAD, self.now, None, blocks
        row.error_code, row.error_message = code, message
        self._note(row)

    def _remember(self, row: Row, what: str, actor: str, **details: Any) -> None:
        row.history = [*(row.history or ()), {"what": what, "at": _text(self.now), "actor": actor, **details}]

    def _change(self, stream: str, position: int) -> Row:
        known = self.books.stream(stream).rows[position]
        self.before.setdefault(position, known)
        return replace(known)

    def _note(self, row: Row, *, quiet: bool = False) -> None:
        if quiet and row.position not in self._rows:
            self.quiet.add(row.position)
        elif not quiet:
            self.quiet.discard(row.position)
        self.before.setdefault(row.position, None)
        self._rows[row.position] = row
        self.books.place(row)

    def _hold(self, lease: Lease) -> None:
        self.entry.leases.append(lease)
        self.books.hold(lease)

    def _close_if_empty(self, token: int) -> None:
        if token in self.books.leases and not self.books.flying.get(token):
            self._close(token)

    def _close(self, token: int) -> None:
        self.entry.closed.append(token)
        self.books.let_go(token)


def _text(seconds: float) -> str:
    return moment(seconds).isoformat()
