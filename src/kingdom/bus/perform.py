"""Performing an effect: record, call, record; and proof before anything is sent again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from kingdom.bus.cancellation import unasked_cancellation_fails
from kingdom.bus.delivery import Delivery
from kingdom.bus.effect import (
    Absent,
    Accepted,
    Acked,
    Answer,
    Attempt,
    Effect,
    Finding,
    Happened,
    Honours,
    Rejected,
    Throttled,
    Unclear,
    Unknown,
    in_storable_words,
)
from kingdom.bus.gate import Gates
from kingdom.bus.ledger import EFFECTS, Ledger, second_id
from kingdom.bus.log import LogEntry
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Retry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.received import Received
from kingdom.errors import LeaseLost, NotFound, Permanent, Unavailable

_ACTOR = "bus"
_STORE_PAUSE_SECONDS = 0.5
_log = structlog.get_logger("kingdom.bus")


async def perform(bus: Bus, effect: Effect[Any], delivery: Delivery, event: Received[Any], gates: Gates) -> Outcome:
    """Bring an effect one step further and settle its delivery; returns what was settled."""
    key = effect.key(event)
    ledger = loaded = await _load(bus, effect, event, key)
    if ledger.finished:
        return await _settle(bus, delivery, Done())
    if known := ledger.unconcluded:
        return await _conclude(bus, effect, delivery, event, ledger, known)
    if ledger.latest.state == "REJECTED":
        ledger = ledger.reopened(effect.request(event))
    if ledger.must_reconcile:
        found = await _find_out(bus, effect, delivery, event, ledger)
        if not isinstance(found, Ledger):
            return found
        ledger = found
    gate = gates.of(effect.target)
    if closed := gate.try_enter():
        wait, reason = closed
        return await _settle(bus, delivery, Defer.by(wait, reason), None if ledger is loaded else ledger)
    ledger = await _record_sent(bus, delivery, ledger)
    answer = in_storable_words(await _call(effect, ledger.attempt(delivery.token)))
    gate.learn(answer)
    while True:
        try:
            return await _settle_answer(bus, effect, delivery, event, ledger, answer)
        except Unavailable as error:
            # Only this process knows the answer: it waits for the store, until its deadline or its lease ends.
            _log.warning("store unavailable, an answer waits", key=key, error=str(error))
            await asyncio.sleep(_STORE_PAUSE_SECONDS)


async def _find_out(
    bus: Bus, effect: Effect[Any], delivery: Delivery, event: Received[Any], ledger: Ledger
) -> Ledger | Outcome:
    """Find out what became of a call that nobody saw end; returns what was settled, or a ledger to send again from."""
    async with bus.transaction(hold=[delivery]) as transaction:
        must_hold(transaction, delivery)
    # The time before the look counts: what was absent then may have arrived before the answer did.
    looked_at = transaction.held_at
    finding = in_storable_words(await _reconcile(effect, ledger.attempt(delivery.token)))
    if isinstance(finding, Happened):
        return await _conclude(bus, effect, delivery, event, ledger.found(finding), Acked(finding.response))
    if isinstance(finding, Absent):
        if wait := ledger.settles_in(effect.target, looked_at):
            return await _settle(bus, delivery, Defer.by(wait, "not there yet, and it may still come"))
        if again := ledger.taken_over(delivery.token, effect.target.honours):
            return again
    return await _leave_unclear(bus, delivery, ledger, _why_unclear(finding))


async def find_ledger(transaction: Transaction, target: str, key: str) -> Ledger | None:
    """Return the ledger of an effect on a target, if it was ever tried."""
    return _of_target(target, await _ledgers(transaction, target, key))


def _of_target(target: str, ledgers: Sequence[Ledger]) -> Ledger | None:
    return next((ledger for ledger in ledgers if ledger.document.target == target), None)


async def _ledgers(transaction: Transaction, target: str, key: str) -> list[Ledger]:
    """Return the ledgers under both ids that an effect can have, the first one of whichever target took the key."""
    ids = [(EFFECTS.name, key), (EFFECTS.name, second_id(target, key))]
    await transaction.read_ahead(ids)
    return [Ledger.read(record) for each in ids if (record := await transaction.get(*each))]


async def close_effect(transaction: Transaction, target: str, key: str, answer: Acked | Rejected) -> bool:
    """Close an effect that its target had only accepted; False if it was closed before."""
    ledger = await find_ledger(transaction, target, key)
    if ledger is None:
        raise NotFound(f"no effect on the target {target!r} has the key {key!r}")
    if ledger.record.state in EFFECTS.final:
        return False
    await transaction.put(ledger.answered(in_storable_words(answer), Honours.NOTHING).conclude().record)
    return True


def must_hold(transaction: Transaction, delivery: Delivery) -> None:
    """Refuse to go on with a delivery that another worker owns by now."""
    if delivery not in transaction.held:
        raise LeaseLost([delivery.position])


async def _load(bus: Bus, effect: Effect[Any], event: Received[Any], key: str) -> Ledger:
    target = effect.target.name
    async with bus.transaction() as transaction:
        known = await _ledgers(transaction, target, key)
    ledger = _of_target(target, known)
    if ledger is None:
        owner, taken = event.envelope.owner_id, bool(known)
        ledger = Ledger.open(key, target, effect.request(event), owner, key_is_taken=taken)
    return ledger.needed_by(event.envelope.event_id)


async def _record_sent(bus: Bus, delivery: Delivery, ledger: Ledger) -> Ledger:
    async with bus.transaction(hold=[delivery]) as transaction:
        must_hold(transaction, delivery)
        sent = ledger.sent(delivery.token, transaction.held_at)
        return Ledger.read(await transaction.put(sent.record))


async def _record(bus: Bus, delivery: Delivery, ledger: Ledger) -> None:
    async with bus.transaction(hold=[delivery]) as transaction:
        must_hold(transaction, delivery)
        await transaction.put(ledger.record)


async def _settle(bus: Bus, delivery: Delivery, outcome: Outcome, ledger: Ledger | None = None) -> Outcome:
    async with bus.transaction(hold=[delivery]) as transaction:
        if ledger is not None:
            await transaction.put(ledger.record)
        await transaction.settle(delivery, outcome)
    return outcome


async def _settle_answer(
    bus: Bus, effect: Effect[Any], delivery: Delivery, event: Received[Any], ledger: Ledger, answer: Answer
) -> Outcome:
    if isinstance(answer, Unknown):
        return await _leave_unclear(bus, delivery, ledger, answer.reason)
    answered = ledger.answered(answer, effect.target.honours)
    if isinstance(answer, Acked | Rejected):
        return await _conclude(bus, effect, delivery, event, answered, answer)
    return await _settle(bus, delivery, _outcome(answer), answered)


async def _conclude(
    bus: Bus,
    effect: Effect[Any],
    delivery: Delivery,
    event: Received[Any],
    ledger: Ledger,
    answer: Acked | Rejected,
) -> Outcome:
    """Write the answer with everything that follows from it; where that fails, at least the answer is kept."""
    try:
        async with bus.transaction(hold=[delivery]) as transaction:
            must_hold(transaction, delivery)
            with unasked_cancellation_fails("conclude"):
                outcome = await effect.conclude(event, answer, transaction)
            await transaction.put(_after(outcome, ledger, event).record)
            await transaction.settle(delivery, outcome)
    except (LeaseLost, Unavailable):
        raise
    except Exception:
        await _record(bus, delivery, ledger)
        raise
    return outcome


def _after(outcome: Outcome, ledger: Ledger, event: Received[Any]) -> Ledger:
    """Return the ledger of an effect of which all that follows is written."""
    match outcome:
        case Done():
            return ledger.conclude().done_for(event.envelope.event_id)
        case Dead():
            return ledger.conclude()
    return ledger


async def _leave_unclear(bus: Bus, delivery: Delivery, ledger: Ledger, reason: str) -> Outcome:
    """Back off, and at the last attempt raise the alarm: a person must find out."""
    outcome: Outcome = Retry(code="effect_unclear", message=reason)
    async with bus.transaction(hold=[delivery]) as transaction:
        await transaction.put(ledger.answered(Unknown(reason), Honours.NOTHING).record)
        if delivery.attempt >= delivery.max_attempts:
            outcome = Dead(reason, "effect_unclear")
            data = {"key": ledger.key, "target": ledger.document.target, "reason": reason}
            await transaction.append(LogEntry(type="effect.unclear", actor=_ACTOR, data=data))
        await transaction.settle(delivery, outcome)
    return outcome


async def _call(effect: Effect[Any], attempt: Attempt) -> Answer:
    try:
        with unasked_cancellation_fails("the call"):
            return await effect.call(attempt)
    except Permanent as error:
        return Rejected(str(error))
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the call may have gone out
        return Unknown(f"{type(error).__name__}: {error}")


async def _reconcile(effect: Effect[Any], attempt: Attempt) -> Finding:
    try:
        with unasked_cancellation_fails("reconcile"):
            return await effect.reconcile(attempt)
    except Exception as error:  # noqa: BLE001 - no answer is no proof
        return Unclear(f"{type(error).__name__}: {error}")


def _outcome(answer: Accepted | Throttled) -> Outcome:
    match answer:
        case Accepted():
            return Done()
        case Throttled(after, reason):
            return Defer.by(after, reason) if after else Retry(code="throttled", message=reason)


def _why_unclear(finding: Absent | Unclear) -> str:
    if isinstance(finding, Unclear):
        return finding.reason
    return "not there, but its target cannot exclude that a stalled sender still sends it"
