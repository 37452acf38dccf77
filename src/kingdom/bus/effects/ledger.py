"""The ledger of one effect: every attempt, recorded before and after the call. This module does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec

from kingdom.bus.effects.effect import (
    Accepted,
    Acked,
    Attempt,
    CallResult,
    Idempotency,
    Present,
    Rejected,
    Target,
    Throttled,
    Unknown,
)
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.ids import new_event_id

# A ledger keeps the first attempt and this many of the newest.
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


class LedgerAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One stored attempt. `inherited` means that its identifier may still be sent by an earlier worker."""

    number: int
    identifier: str
    state: State
    fence: int
    sent_at: datetime | None = None
    inherited: bool = False
    note: str = ""


class _LedgerDocument(msgspec.Struct, frozen=True, kw_only=True):
    # Empty in documents of an earlier version.
    key: str = ""
    target: str
    request: dict[str, Any]
    attempts: tuple[LedgerAttempt, ...]
    response: dict[str, Any] | None = None
    awaiting: bool = False
    concluded: bool = False
    # The ids of the events of this effect that have not ended in Done.
    events: tuple[str, ...] = ()


def second_id(target: str, key: str) -> str:
    """Return the record id of an effect whose key another target already uses."""
    return f"{quote(target, safe='')}:{key}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The stored history of one effect. A gap in the attempt numbers means that old attempts were removed."""

    record: Record
    document: _LedgerDocument

    @classmethod
    def open(
        cls, key: str, target: str, request: Mapping[str, Any], owner: str, *, key_is_taken: bool = False
    ) -> "Ledger":
        """Open the ledger of a new effect. Its record id is the key, unless another target already uses that."""
        first = LedgerAttempt(number=1, identifier=str(new_event_id()), state="PREPARED", fence=0)
        document = _LedgerDocument(key=key, target=target, request=dict(request), attempts=(first,))
        record_id = second_id(target, key) if key_is_taken else key
        return cls(Record(kind=EFFECTS.name, id=record_id, state="PREPARED", owner=owner), document)

    @classmethod
    def read(cls, record: Record) -> "Ledger":
        """Read the ledger from its record."""
        return cls(record, read_document(record.doc, _LedgerDocument))

    @property
    def key(self) -> str:
        """Return the key of the effect."""
        return self.document.key or self.record.id

    @property
    def latest(self) -> LedgerAttempt:
        """Return the newest attempt."""
        return self.document.attempts[-1]

    @property
    def finished(self) -> bool:
        """Return whether a worker has nothing left to do: the effect is concluded, or an event will close it."""
        return self.document.awaiting or (self.latest.state == "ACKED" and self.document.concluded)

    @property
    def unconcluded(self) -> Acked | Rejected | None:
        """Return a recorded result whose consequences are not written yet."""
        if self.document.concluded:
            return None
        if self.latest.state == "ACKED":
            return Acked(self.document.response or {})
        return Rejected(self.latest.note) if self.latest.state == "REJECTED" else None

    def reopened(self, request: Mapping[str, Any]) -> "Ledger":
        """Start a new attempt after a refusal, which had no effect. The redriven event may have another request."""
        return self._with(request=dict(request), concluded=False, response=None)._next(Idempotency.NOTHING)

    def conclude(self) -> "Ledger":
        """Record that all consequences of the result are written."""
        return self._with(concluded=True)

    def needed_by(self, event_id: UUID) -> "Ledger":
        """Record that an event needs this ledger if it is delivered again, even after a long time as DEAD."""
        known = self.document.events
        return self if str(event_id) in known else self._with(events=(*known, str(event_id)))

    def done_for(self, event_id: UUID) -> "Ledger":
        """Record that an event will not be delivered again."""
        return self._with(events=tuple(each for each in self.document.events if each != str(event_id)))

    @property
    def must_reconcile(self) -> bool:
        """Return whether a call was sent and its result is not known."""
        return self.latest.state in ("SENT", "UNKNOWN")

    def attempt(self, fence: int) -> Attempt:
        """Return the newest attempt for `call` and `reconcile`, with the fence of the current delivery."""
        return Attempt(self.latest.number, self.latest.identifier, self.document.request, fence)

    def sent(self, fence: int, at: datetime | None = None) -> "Ledger":
        """Record that the call is about to be sent. Commit this before sending."""
        inherited = self.latest.inherited or self.latest.state == "SENT"
        return self._latest(state="SENT", fence=fence, inherited=inherited, sent_at=at)

    def settles_in(self, target: Target, looked_at: datetime | None) -> timedelta | None:
        """Return how long an absent call may still appear, if the target guarantees a time."""
        if target.idempotency is not Idempotency.TIME or self.latest.sent_at is None or looked_at is None:
            return None
        left = self.latest.sent_at + target.settles_after - looked_at
        return left if left > timedelta() else None

    def answered(self, result: CallResult, idempotency: Idempotency) -> "Ledger":
        """Record the result of the call. A throttled attempt is followed by a new one in the same step."""
        match result:
            case Acked(response):
                return self._latest(state="ACKED")._with(response=dict(response), awaiting=False)
            case Rejected(reason):
                return self._latest(state="REJECTED", note=reason)._with(awaiting=False)
            case Accepted():
                return self._with(awaiting=True)
            case Throttled(_, reason):
                return self._latest(state="THROTTLED", note=reason)._next(idempotency)
            case Unknown(reason):
                return self._latest(state="UNKNOWN", note=reason)

    def found(self, proof: Present) -> "Ledger":
        """Record proof that the newest attempt took effect."""
        return self._latest(state="ACKED", note="found by reconcile")._with(response=dict(proof.response))

    def taken_over(self, fence: int, idempotency: Idempotency) -> "Ledger | None":
        """Prepare to send an absent call again, or return None if an earlier sender may still send it.

        A target that executes each identifier once gets the same identifier again. A target that enforces fences has
        seen this fence in `reconcile`, so a new identifier is safe if the fence is higher than that of the earlier
        call. For a target with a guaranteed time, that time has passed by now.
        """
        fenced = idempotency in (Idempotency.FENCE, Idempotency.TIME)
        if idempotency is Idempotency.NOTHING or (fenced and fence <= self.latest.fence):
            return None
        return self._latest(state="UNKNOWN", fence=fence, note="proven absent")._next(idempotency, absent=True)

    def _next(self, idempotency: Idempotency, *, absent: bool = False) -> "Ledger":
        """Open the next attempt. It keeps the identifier if an earlier sender may still use it."""
        keep = idempotency is Idempotency.IDENTIFIER and (absent or self.latest.inherited)
        entry = LedgerAttempt(
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
