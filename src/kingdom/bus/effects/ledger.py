"""The ledger of one effect. It records every attempt before and after the call. This module does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec

from kingdom.bus.delivery import Delivery
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

# A ledger keeps the first attempt and this many of the newest attempts.
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
    indexes=("owner",),
)


class LedgerAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One stored attempt. `inherited` means that an earlier worker may still send a call with this identifier.

    `fence` is the token of the delivery that made the attempt. Later deliveries have higher tokens.
    """

    number: int
    identifier: str
    state: State
    fence: int
    sent_at: datetime | None = None
    inherited: bool = False
    note: str = ""


class _LedgerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a ledger record.

    `awaiting` means that the target accepted the call, and that an event will close the effect. `concluded` means that
    the consequences of the result are written, and `closed` that `close_effect` has recorded the result.
    """

    # Documents of an earlier version have no key.
    key: str = ""
    target: str
    request: dict[str, Any]
    attempts: tuple[LedgerAttempt, ...]
    response: dict[str, Any] | None = None
    awaiting: bool = False
    concluded: bool = False
    closed: bool = False
    # The events that share this effect, except those for which `conclude` has returned Done.
    events: tuple[str, ...] = ()


def possible_ids(target: str, key: str) -> list[str]:
    """Return the ids that the record of an effect can have. It gets the first one that no other effect has."""
    prefix = f"{quote(target, safe='')}:"
    return [key, f"{prefix}{key}", f"{prefix}{prefix}{key}"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The stored history of one effect. Methods that record something return a changed copy.

    A gap in the attempt numbers means that old attempts were removed.
    """

    record: Record
    document: _LedgerDocument

    @classmethod
    def open(
        cls, key: str, target: str, request: Mapping[str, Any], owner: str, *, record_id: str | None = None
    ) -> "Ledger":
        """Return the ledger of a new effect. By default, its record id is the key."""
        first = LedgerAttempt(number=1, identifier=str(new_event_id()), state="PREPARED", fence=0)
        document = _LedgerDocument(key=key, target=target, request=dict(request), attempts=(first,))
        return cls(Record(kind=EFFECTS.name, id=record_id or key, state="PREPARED", indexed={"owner": owner}), document)

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
        """Return whether workers have nothing left to do: the call is ACKED and concluded, or waits for an event."""
        return self.document.awaiting or (self.latest.state == "ACKED" and self.document.concluded)

    def was_closed_for(self, delivery: Delivery) -> bool:
        """Return whether `close_effect` has recorded the result of a call that was sent for this delivery or before it.

        Another event, or the first delivery after a redrive, makes a new attempt if the call was rejected.
        """
        is_ours = str(delivery.envelope.event_id) in self.document.events
        was_sent = delivery.attempt > 1 or delivery.token == self.latest.fence
        return self.document.closed and is_ours and was_sent

    @property
    def unconcluded_result(self) -> Acked | Rejected | None:
        """Return the recorded result if its consequences are not written yet, else None."""
        if self.document.concluded:
            return None
        if self.latest.state == "ACKED":
            return Acked(self.document.response or {})
        return Rejected(self.latest.note) if self.latest.state == "REJECTED" else None

    def reopen(self, request: Mapping[str, Any]) -> "Ledger":
        """Start a new attempt after the target rejected the call. A redriven event may have another request."""
        reopened = self._change(request=dict(request), concluded=False, closed=False, response=None)
        return reopened._add_attempt(Idempotency.NOTHING)

    def conclude(self) -> "Ledger":
        """Record that all consequences of the result are written."""
        return self._change(concluded=True)

    def close(self, result: Acked | Rejected) -> "Ledger":
        """Record the result of a call that its target had accepted. Its consequences need no `conclude`."""
        return self.record_result(result)._change(concluded=True, closed=True)

    def add_event(self, event_id: UUID) -> "Ledger":
        """Record that an event shares this effect. The ledger is kept as long as the event can be delivered."""
        known = self.document.events
        return self if str(event_id) in known else self._change(events=(*known, str(event_id)))

    def remove_event(self, event_id: UUID) -> "Ledger":
        """Record that an event will not be delivered again."""
        return self._change(events=tuple(each for each in self.document.events if each != str(event_id)))

    @property
    def must_reconcile(self) -> bool:
        """Return whether a call was sent and its result is not known."""
        return self.latest.state in ("SENT", "UNKNOWN")

    def attempt(self, fence: int) -> Attempt:
        """Return the newest attempt for `call` and `reconcile`, with the fence of the current delivery."""
        return Attempt(self.latest.number, self.latest.identifier, self.document.request, fence)

    def record_sent(self, fence: int, at: datetime | None = None) -> "Ledger":
        """Record that the call is about to be sent. Commit this before sending."""
        inherited = self.latest.inherited or self.latest.state == "SENT"
        return self._change_latest(state="SENT", fence=fence, inherited=inherited, sent_at=at)

    def remaining_wait(self, target: Target, looked_at: datetime | None) -> timedelta | None:
        """Return how long the target may still need until it shows a call that it does not show now.

        Return None if that time is over or not known, or if the target does not use Idempotency.TIME.
        """
        if target.idempotency is not Idempotency.TIME or self.latest.sent_at is None or looked_at is None:
            return None
        left = self.latest.sent_at + target.settles_after - looked_at
        return left if left > timedelta() else None

    def record_result(self, result: CallResult, idempotency: Idempotency = Idempotency.NOTHING) -> "Ledger":
        """Record the result of the call. If it was throttled, also open the next attempt, with this idempotency."""
        match result:
            case Acked(response):
                return self._change_latest(state="ACKED")._change(response=dict(response), awaiting=False)
            case Rejected(reason):
                return self._change_latest(state="REJECTED", note=reason)._change(awaiting=False)
            case Accepted():
                return self._change(awaiting=True)
            case Throttled(_, reason):
                return self._change_latest(state="THROTTLED", note=reason)._add_attempt(idempotency)
            case Unknown(reason):
                return self._change_latest(state="UNKNOWN", note=reason)

    def record_proof(self, proof: Present) -> "Ledger":
        """Record proof that the newest attempt took effect."""
        return self._change_latest(state="ACKED", note="found by reconcile")._change(response=dict(proof.response))

    def prepare_resend(self, fence: int, idempotency: Idempotency) -> "Ledger | None":
        """Prepare to repeat a call that did not arrive. Return None if an earlier sender may still send it.

        With Idempotency.IDENTIFIER, both calls have the same identifier, so the target executes only one of them.
        With FENCE, the target has seen this fence in `reconcile`, so it refuses the earlier call with its lower fence.
        With TIME, `remaining_wait` is over, so the earlier call can no longer appear.
        """
        fenced = idempotency in (Idempotency.FENCE, Idempotency.TIME)
        if idempotency is Idempotency.NOTHING or (fenced and fence <= self.latest.fence):
            return None
        return self._change_latest(state="UNKNOWN", fence=fence, note="proven absent")._add_attempt(
            idempotency, absent=True
        )

    def _add_attempt(self, idempotency: Idempotency, *, absent: bool = False) -> "Ledger":
        """Open the next attempt. It keeps the identifier if an earlier sender may still send a call with it."""
        keep = idempotency is Idempotency.IDENTIFIER and (absent or self.latest.inherited)
        entry = LedgerAttempt(
            number=self.latest.number + 1,
            identifier=self.latest.identifier if keep else str(new_event_id()),
            state="PREPARED",
            fence=self.latest.fence,
            inherited=keep,
        )
        first, *later = *self.document.attempts, entry
        return self._change(attempts=(first, *later[-_NEWEST_KEPT:]))

    def _change_latest(self, **changes: Any) -> "Ledger":
        entry = msgspec.structs.replace(self.latest, **changes)
        return self._change(attempts=(*self.document.attempts[:-1], entry))

    def _change(self, **changes: Any) -> "Ledger":
        document = msgspec.structs.replace(self.document, **changes)
        state = document.attempts[-1].state
        return Ledger(self.record.replace(state=state, doc=msgspec.to_builtins(document)), document)
