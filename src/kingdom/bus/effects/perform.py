"""Perform an effect: record the attempt, send the call, record the result. Before sending again, ask for proof."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from kingdom.bus.cancellation import fail_on_stray_cancellation
from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import (
    Absent,
    Accepted,
    Acked,
    CallResult,
    Effect,
    Present,
    ReconcileResult,
    Rejected,
    Throttled,
    Unclear,
    Unknown,
    make_storable,
)
from kingdom.bus.effects.ledger import EFFECTS, Ledger, possible_ids
from kingdom.bus.effects.target_limiter import TargetLimiters
from kingdom.bus.event import Event
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Retry
from kingdom.bus.port import Bus, Transaction
from kingdom.errors import LeaseLost, NotFound, Permanent, Unavailable, Unreadable

_ACTOR = "bus"
# How long to wait before a result is written again to a store that was unavailable.
_STORE_PAUSE_SECONDS = 0.5
_log = structlog.get_logger("kingdom.bus")


async def perform(
    bus: Bus, effect: Effect[Any], delivery: Delivery, event: Event[Any], limiters: TargetLimiters
) -> Outcome:
    """Handle one delivery of an effect: settle it, and return the outcome."""
    return await _EffectHandler(bus, effect, delivery, event, limiters).run()


async def find_ledger(transaction: Transaction, target: str, key: str) -> Ledger | None:
    """Return the ledger of an effect on a target, or None if it was never tried."""
    ledgers = await _read_ledgers(transaction, target, key)
    return _find_own(target, key, ledgers.values())


async def close_effect(transaction: Transaction, target: str, key: str, result: Acked | Rejected) -> bool:
    """Record the result of an effect that its target had only accepted. Return False if it already has a result."""
    ledger = await find_ledger(transaction, target, key)
    if ledger is None:
        raise NotFound(f"no effect on the target {target!r} has the key {key!r}")
    if ledger.record.state in EFFECTS.final:
        return False
    await transaction.put(ledger.close(make_storable(result)).record)
    return True


async def log_open_call(
    transaction: Transaction, effect: Effect[Any], delivery: Delivery, receive: Callable[[Delivery], Event[Any]]
) -> None:
    """Log that an event ends DEAD while it is not known whether its call was made: a person must look at the target."""
    try:
        key = effect.key(receive(delivery))
    except Exception:  # noqa: BLE001 - without a key, no call was made
        return
    try:
        ledger = await find_ledger(transaction, effect.target.name, key)
    except Unreadable as error:
        # The event must end nevertheless, and its error already names the cause.
        _log.warning("cannot look for an open call of a dead event", key=key, error=str(error))
        return
    if ledger and ledger.must_reconcile and not ledger.finished:
        await transaction.append(_unclear_entry(ledger, ledger.latest.note or "the call was sent without an answer"))


def require_held(transaction: Transaction, delivery: Delivery) -> None:
    """Raise LeaseLost if this worker no longer owns the delivery."""
    if delivery not in transaction.held:
        raise LeaseLost([delivery.position])


@dataclass(frozen=True, slots=True)
class _EffectHandler:
    """Handles one delivery of an effect."""

    bus: Bus
    effect: Effect[Any]
    delivery: Delivery
    event: Event[Any]
    limiters: TargetLimiters

    async def run(self) -> Outcome:
        """Send the call if needed, settle the delivery, and return its outcome."""
        key = self.effect.key(self.event)
        known_ledger = await self._load(key)
        if known_ledger.finished or known_ledger.was_closed_for(self.delivery):
            return await self._settle(Done())
        ledger = loaded = known_ledger.add_event(self.event.envelope.event_id)
        if known := ledger.unconcluded_result:
            return await self._conclude(ledger, known)
        if ledger.latest.state == "REJECTED":
            ledger = ledger.reopen(self.effect.request(self.event))
        if ledger.must_reconcile:
            found = await self._reconcile(ledger)
            if not isinstance(found, Ledger):
                return found
            ledger = found
        limiter = self.limiters.get(self.effect.target)
        if refusal := limiter.try_acquire():
            wait, reason = refusal
            return await self._settle(Defer.by(wait, reason), None if ledger is loaded else ledger)
        ledger = await self._record_sent(ledger)
        result = make_storable(await self._call(ledger))
        limiter.record(result)
        while True:
            try:
                return await self._settle_result(ledger, result)
            except Unavailable as error:
                # Only this process knows the result, so it tries again until its deadline or lease ends.
                _log.warning("store unavailable, a result waits to be recorded", key=key, error=str(error))
                await asyncio.sleep(_STORE_PAUSE_SECONDS)

    async def _load(self, key: str) -> Ledger:
        target = self.effect.target.name
        async with self.bus.transaction() as transaction:
            known = await _read_ledgers(transaction, target, key)
        if ledger := _find_own(target, key, known.values()):
            return ledger
        ids = possible_ids(target, key)
        # If other effects have all these ids, the commit fails, because the record exists.
        free = next((each for each in ids if each not in known), ids[-1])
        return Ledger.open(key, target, self.effect.request(self.event), self.event.envelope.owner_id, record_id=free)

    async def _reconcile(self, ledger: Ledger) -> Ledger | Outcome:
        """Find out whether a call without a recorded result took effect.

        Return the ledger with a new attempt if the call may be sent again. Otherwise settle the delivery and return its
        outcome.
        """
        async with self.bus.transaction(hold=[self.delivery]) as transaction:
            require_held(transaction, self.delivery)
        # Use the time before the target is asked, because the call may still arrive while the target replies.
        looked_at = transaction.held_at
        found = make_storable(await self._ask_target(ledger))
        target = self.effect.target
        if isinstance(found, Present):
            return await self._conclude(ledger.record_proof(found), Acked(found.response))
        if isinstance(found, Absent):
            if wait := ledger.remaining_wait(target, looked_at):
                return await self._settle(Defer.by(wait, "the target does not show the call yet, but still may"))
            if again := ledger.prepare_resend(self.delivery.token, target.idempotency):
                return again
        return await self._leave_unclear(ledger, _why_unclear(found))

    async def _ask_target(self, ledger: Ledger) -> ReconcileResult:
        try:
            with fail_on_stray_cancellation("reconcile"):
                return await self.effect.reconcile(ledger.attempt(self.delivery.token))
        except Exception as error:  # noqa: BLE001 - an error proves nothing about the call
            return Unclear(f"{type(error).__name__}: {error}")

    async def _call(self, ledger: Ledger) -> CallResult:
        try:
            with fail_on_stray_cancellation("the call"):
                return await self.effect.call(ledger.attempt(self.delivery.token))
        except Permanent as error:
            return Rejected(str(error))
        except Exception as error:  # noqa: BLE001 - after any error, the call may have gone out
            return Unknown(f"{type(error).__name__}: {error}")

    async def _record_sent(self, ledger: Ledger) -> Ledger:
        async with self.bus.transaction(hold=[self.delivery]) as transaction:
            require_held(transaction, self.delivery)
            sent = ledger.record_sent(self.delivery.token, transaction.held_at)
            return Ledger.read(await transaction.put(sent.record))

    async def _record(self, ledger: Ledger) -> None:
        async with self.bus.transaction(hold=[self.delivery]) as transaction:
            require_held(transaction, self.delivery)
            await transaction.put(ledger.record)

    async def _settle(self, outcome: Outcome, ledger: Ledger | None = None) -> Outcome:
        async with self.bus.transaction(hold=[self.delivery]) as transaction:
            if ledger is not None:
                await transaction.put(ledger.record)
            await transaction.settle(self.delivery, outcome)
        return outcome

    async def _settle_result(self, ledger: Ledger, result: CallResult) -> Outcome:
        if isinstance(result, Unknown):
            return await self._leave_unclear(ledger, result.reason)
        answered = ledger.record_result(result, self.effect.target.idempotency)
        if isinstance(result, Acked | Rejected):
            return await self._conclude(answered, result)
        return await self._settle(_outcome_of(result), answered)

    async def _conclude(self, ledger: Ledger, result: Acked | Rejected) -> Outcome:
        """Write the result and its consequences in one transaction. If that fails, write only the result."""
        try:
            async with self.bus.transaction(hold=[self.delivery]) as transaction:
                require_held(transaction, self.delivery)
                with fail_on_stray_cancellation("conclude"):
                    outcome = await self.effect.conclude(self.event, result, transaction)
                await transaction.put(self._concluded(ledger, outcome).record)
                await transaction.settle(self.delivery, outcome)
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            await self._record(ledger)
            raise
        return outcome

    def _concluded(self, ledger: Ledger, outcome: Outcome) -> Ledger:
        """Return the ledger after `conclude` has returned an outcome."""
        match outcome:
            case Done():
                return ledger.conclude().remove_event(self.event.envelope.event_id)
            case Dead():
                return ledger.conclude()
        return ledger

    async def _leave_unclear(self, ledger: Ledger, reason: str) -> Outcome:
        """Settle with Retry. At the last attempt, settle with Dead and log it: a person must look at the target."""
        outcome: Outcome = Retry(code="effect_unclear", message=reason)
        async with self.bus.transaction(hold=[self.delivery]) as transaction:
            await transaction.put(ledger.record_result(Unknown(reason)).record)
            if self.delivery.attempt >= self.delivery.max_attempts:
                outcome = Dead(reason, "effect_unclear")
                await transaction.append(_unclear_entry(ledger, reason))
            await transaction.settle(self.delivery, outcome)
        return outcome


async def _read_ledgers(transaction: Transaction, target: str, key: str) -> dict[str, Ledger]:
    """Return the ledgers under the ids that an effect can have. Some of them may belong to other effects."""
    ids = possible_ids(target, key)
    await transaction.read_ahead([(EFFECTS.name, each) for each in ids])
    return {each: Ledger.read(record) for each in ids if (record := await transaction.get(EFFECTS.name, each))}


def _find_own(target: str, key: str, ledgers: Iterable[Ledger]) -> Ledger | None:
    return next((each for each in ledgers if (each.document.target, each.key) == (target, key)), None)


def _unclear_entry(ledger: Ledger, reason: str) -> LogEntry:
    data = {"key": ledger.key, "target": ledger.document.target, "reason": reason}
    return LogEntry(type="effect.unclear", actor=_ACTOR, data=data)


def _outcome_of(result: Accepted | Throttled) -> Outcome:
    match result:
        case Accepted():
            return Done()
        case Throttled(after, reason):
            return Defer.by(after, reason) if after else Retry(code="throttled", message=reason)


def _why_unclear(found: Absent | Unclear) -> str:
    if isinstance(found, Unclear):
        return found.reason
    return "the target does not show the call, but a stalled sender may still send it"
