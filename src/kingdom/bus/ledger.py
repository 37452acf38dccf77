"""The ledger of one effect: every attempt, recorded before and after the call. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec

from kingdom.bus.effect import (
    Accepted,
    Acked,
    Answer,
    Attempt,
    Happened,
    Honours,
    Rejected,
    Target,
    Throttled,
    Unknown,
)
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.ids import new_event_id

# Of an effect whose target is away for days: the first attempt, and this many of the newest.
_NEWEST_KEPT = 20
State = Literal["PREPARED", "SENT", "ACKED", "REJECTED", "THROTTLED", "UNKNOWN"]

EFFECTS = RecordKind(
    name="effect",
    directories={
        state: f"state/effects/{state.lower()}"
        for state in ("PREPARED", "SENT", "ACKED", "REJECTED", "THROTTLED", "UNKNOWN")
    },
    final=frozenset({"ACKED", "REJECTED"}),
    retention=timedelta(days=30),
    final_when={"concluded": True},
    kept_for="events",
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as it is stored; `inherited` once another worker took it over from one that may still wake up."""

    number: int
    identifier: str
    state: State
    fence: int
    sent_at: datetime | None = None
    inherited: bool = False
    note: str = ""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    # Empty where an earlier version wrote it.
    key: str = ""
    target: str
    request: dict[str, Any]
    attempts: tuple[Entry, ...]
    response: dict[str, Any] | None = None
    awaiting: bool = False
    concluded: bool = False
    # The ids of events that came to this effect and have not ended in Done.
    events: tuple[str, ...] = ()


def second_id(target: str, key: str) -> str:
    """Return the id of an effect's record where another target has taken its key."""
    return f"{quote(target, safe='')}:{key}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The stored history of one effect, and what may be done next; a gap in the numbers is what was not kept."""

    record: Record
    document: _Document

    @classmethod
    def open(
        cls, key: str, target: str, request: Mapping[str, Any], owner: str, *, key_is_taken: bool = False
    ) -> "Ledger":
        """Begin the ledger of an effect that was never tried; its id is the key, unless another target took that."""
        first = Entry(number=1, identifier=str(new_event_id()), state="PREPARED", fence=0)
        document = _Document(key=key, target=target, request=dict(request), attempts=(first,))
        record_id = second_id(target, key) if key_is_taken else key
        return cls(Record(kind=EFFECTS.name, id=record_id, state="PREPARED", owner=owner), document)

    @classmethod
    def read(cls, record: Record) -> "Ledger":
        """Read the ledger from its record."""
        return cls(record, read_document(record.doc, _Document))

    @property
    def key(self) -> str:
        """Return what must happen at most once on its target."""
        return self.document.key or self.record.id

    @property
    def latest(self) -> Entry:
        """Return the newest attempt."""
        return self.document.attempts[-1]

    @property
    def finished(self) -> bool:
        """Tell whether nothing is left to do for a worker: it happened and was concluded, or an event will close it."""
        return self.document.awaiting or (self.latest.state == "ACKED" and self.document.concluded)

    @property
    def unconcluded(self) -> Acked | Rejected | None:
        """Return an answer that is known, but that nobody has drawn the conclusions from."""
        if self.document.concluded:
            return None
        if self.latest.state == "ACKED":
            return Acked(self.document.response or {})
        return Rejected(self.latest.note) if self.latest.state == "REJECTED" else None

    def reopened(self, request: Mapping[str, Any]) -> "Ledger":
        """Begin anew what was refused: it had no effect, and the event that comes again may ask for something else."""
        return self._with(request=dict(request), concluded=False, response=None)._next(Honours.NOTHING)

    def conclude(self) -> "Ledger":
        """Record that everything which follows from the answer was written."""
        return self._with(concluded=True)

    def needed_by(self, event_id: UUID) -> "Ledger":
        """Record that an event must find this ledger if it is delivered again, also when it was dead for long."""
        known = self.document.events
        return self if str(event_id) in known else self._with(events=(*known, str(event_id)))

    def done_for(self, event_id: UUID) -> "Ledger":
        """Record that an event will not be delivered again."""
        return self._with(events=tuple(each for each in self.document.events if each != str(event_id)))

    @property
    def must_reconcile(self) -> bool:
        """Tell whether a call was sent whose end nobody has recorded."""
        return self.latest.state in ("SENT", "UNKNOWN")

    def attempt(self, fence: int) -> Attempt:
        """Return the newest attempt as `call` and `reconcile` see it, under the fence of the present delivery."""
        return Attempt(self.latest.number, self.latest.identifier, self.document.request, fence)

    def sent(self, fence: int, at: datetime | None = None) -> "Ledger":
        """Record that the call is about to be made; commit this before calling."""
        inherited = self.latest.inherited or self.latest.state == "SENT"
        return self._latest(state="SENT", fence=fence, inherited=inherited, sent_at=at)

    def settles_in(self, target: Target, looked_at: datetime | None) -> timedelta | None:
        """Return for how long a call that was not there may still turn up, where only time can tell."""
        if target.honours is not Honours.TIME or self.latest.sent_at is None or looked_at is None:
            return None
        left = self.latest.sent_at + target.settles_after - looked_at
        return left if left > timedelta() else None

    def answered(self, answer: Answer, honours: Honours) -> "Ledger":
        """Record what the target said; a throttled attempt is followed by a fresh one in the same step."""
        match answer:
            case Acked(response):
                return self._latest(state="ACKED")._with(response=dict(response), awaiting=False)
            case Rejected(reason):
                return self._latest(state="REJECTED", note=reason)._with(awaiting=False)
            case Accepted():
                return self._with(awaiting=True)
            case Throttled(_, reason):
                return self._latest(state="THROTTLED", note=reason)._next(honours)
            case Unknown(reason):
                return self._latest(state="UNKNOWN", note=reason)

    def found(self, finding: Happened) -> "Ledger":
        """Record proof that the newest attempt took effect."""
        return self._latest(state="ACKED", note="found by reconcile")._with(response=dict(finding.response))

    def taken_over(self, fence: int, honours: Honours) -> "Ledger | None":
        """Prepare to send again what was proven absent, or None where a late sender cannot be excluded.

        A target that dedups identifiers gets the same one again: whoever sends it, it counts once. A target that
        honours fences has seen the higher fence in `reconcile`, so a new identifier is safe; under the fence that the
        call was sent with it is not, as the call may still be on its way. Where time tells, it has passed by now.
        """
        fenced = honours in (Honours.FENCE, Honours.TIME)
        if honours is Honours.NOTHING or (fenced and fence <= self.latest.fence):
            return None
        return self._latest(state="UNKNOWN", fence=fence, note="proven absent")._next(honours, absent=True)

    def _next(self, honours: Honours, *, absent: bool = False) -> "Ledger":
        """Open the next attempt; its identifier is new only if nobody can still send the old one."""
        keep = honours is Honours.IDENTIFIER and (absent or self.latest.inherited)
        entry = Entry(
            number=self.latest.number + 1,
            identifier=self.latest.identifier if keep else str(new_event_id()),
            state="PREPARED",
            fence=self.latest.fence,
            inherited=keep,
        )
        first, *later = *self.document.attempts, entry
        return self._with(attempts=(first, *later[-_NEWEST_KEPT:]))

    def _latest(self, **changes: Any) -> "Ledger":
        entry = msgspec.structs.replace(self.latest, **changes)
        return self._with(attempts=(*self.document.attempts[:-1], entry))

    def _with(self, **changes: Any) -> "Ledger":
        document = msgspec.structs.replace(self.document, **changes)
        state = document.attempts[-1].state
        return Ledger(replace(self.record, state=state, doc=msgspec.to_builtins(document)), document)
