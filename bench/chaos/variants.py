"""Broken variants of the bus on any backend. Each one patches classes of the product in its own process."""

import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import Idempotency
from kingdom.bus.effects.ledger import Ledger
from kingdom.bus.envelope import Envelope
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.port import Bus, LeaseRenewal, Transaction
from kingdom.bus.stream import Topology
from kingdom.bus.worker import worker
from kingdom.bus.worker.dispatcher import HandlerRoute
from kingdom.bus.worker.execution import Execution, _MustRunAlone
from kingdom.bus.worker.keeper import HeldLease
from kingdom.bus.worker.unit import Unit
from kingdom.verify import process
from kingdom.verify.script import die
from kingdom.verify.workload import topology

# How long `lazy_reaper` leaves expired leases alone.
LAZY_SECONDS = 30


def resend_on_unknown() -> None:
    """Send a call again if its result is unknown, as if it had not happened."""
    sent = Ledger.record_sent

    def send_again(ledger: Ledger, fence: int, at: datetime | None = None) -> Ledger:
        again = ledger.latest.state in ("SENT", "UNKNOWN")
        return sent(ledger._add_attempt(Idempotency.NOTHING) if again else ledger, fence, at)

    replace(Ledger, "record_sent", send_again)
    replace(Ledger, "must_reconcile", property(lambda _: False))


def fresh_identifier() -> None:
    """Repeat an absent call under a new identifier, although its first sender may only be stopped."""
    following = Ledger._add_attempt

    def forget(ledger: Ledger, _honours: Idempotency, *, absent: bool = False) -> Ledger:
        return following(ledger, Idempotency.NOTHING, absent=absent)

    replace(Ledger, "_add_attempt", forget)


def settle_outside() -> None:
    """Commit what a reaction wrote, then settle its event in another transaction."""
    _one_by_one(_react_then_settle)


def settle_first() -> None:
    """Settle an event before its reaction runs, so that a crash loses the reaction."""
    _one_by_one(_settle_then_react)


def split_keys() -> None:
    """Run the events of one key in parallel if they were claimed together."""

    def one_by_one(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
        return [[delivery] for delivery in deliveries]

    replace(worker, "split_by_key", one_by_one)


def impatient() -> None:
    """Send an absent call again immediately, although its target may show a call later."""
    replace(Ledger, "remaining_wait", lambda *_: None)


def reversed_order() -> None:
    """Reverse the events of a transaction."""
    publish = Transaction.publish

    async def publish_backwards(transaction: Transaction, *envelopes: Envelope, at: datetime | None = None) -> None:
        await publish(transaction, *envelopes, at=at)
        copies = dict(reversed(transaction.changes.copies.items()))
        transaction.changes.copies.clear()
        transaction.changes.copies.update(copies)

    replace(Transaction, "publish", publish_backwards)


def no_delay() -> None:
    """Make delayed events due immediately."""
    publish = Transaction.publish

    async def publish_now(transaction: Transaction, *envelopes: Envelope, at: datetime | None = None) -> None:
        del at
        await publish(transaction, *envelopes)

    replace(Transaction, "publish", publish_now)


def generous_keys() -> None:
    """Let every transaction take a dedup key, even a key that is taken already."""

    async def once(transaction: Transaction, scope: str, key: str, keep: timedelta) -> bool:
        await transaction._take_key(scope, key, keep)
        return True

    replace(Transaction, "once", once)


def no_block() -> None:
    """Let later events of a key pass a dead event that must block them."""

    def passing(lease: timedelta, steady_lease: timedelta | None = None, carried: Collection[str] = ()) -> Topology:
        streams = topology(lease, steady_lease, carried)
        return Topology(dataclasses.replace(streams.stream(name), on_dead="skip") for name in streams.names())

    replace(process, "topology", passing)


VARIANTS: Mapping[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        resend_on_unknown,
        fresh_identifier,
        settle_outside,
        settle_first,
        split_keys,
        impatient,
        reversed_order,
        no_delay,
        generous_keys,
        no_block,
    )
}


def variants_of(bus_class: type[Bus]) -> Mapping[str, Callable[[], None]]:
    """Return the broken variants that only use the port of a bus."""
    return {
        "no_reaper": partial(reap_never, bus_class),
        "lazy_reaper": partial(reap_late, bus_class),
        "no_renewal": partial(forget_renewals, bus_class),
        "torn_publish": partial(commit_in_parts, bus_class),
        "never_roll_back": partial(commit_always, bus_class),
    }


def reap_never(bus_class: type[Bus]) -> None:
    """Never return the events of a dead worker."""

    async def reap(_: Bus) -> int:
        return 0

    replace(bus_class, "reap", reap)


def forget_renewals(bus_class: type[Bus]) -> None:
    """Make a bus report leases as renewed without renewing them."""

    def renew(_: Bus, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        return LeaseRenewal(frozenset(leases), frozenset())

    replace(bus_class, "renew", renew)


def reap_late(bus_class: type[Bus]) -> None:
    """Make a bus reap expired leases only after some time."""
    reap, began = bus_class.reap, time.monotonic()

    async def sleep_on(bus: Bus) -> int:
        return await reap(bus) if time.monotonic() - began > LAZY_SECONDS else 0

    replace(bus_class, "reap", sleep_on)


def commit_in_parts(bus_class: type[Bus]) -> None:
    """Make a bus commit the first half of a publish, and die before the second half."""
    transaction = bus_class.transaction

    @asynccontextmanager
    async def tear(bus: Bus, hold: Sequence[Delivery] = (), *, optimistic: bool = False) -> AsyncIterator[Transaction]:
        async with transaction(bus, hold, optimistic=optimistic) as opened:
            yield opened
            copies = opened.changes.copies
            is_torn = len(copies) > 1 and not opened.changes.settlements
            for key in list(copies)[len(copies) // 2 :] if is_torn else ():
                del copies[key]
        if is_torn:
            die()

    replace(bus_class, "transaction", tear)


def rely_on_leases() -> None:
    """Let a worker continue after its lease has expired, so that only the fencing token protects the store."""
    replace(HeldLease, "lost_at", property(lambda _: math.inf))


def commit_always(bus_class: type[Bus]) -> None:
    """Commit transactions even if their block fails."""
    transaction = bus_class.transaction

    @asynccontextmanager
    async def never_roll_back(
        bus: Bus, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        failure: Exception | None = None
        async with transaction(bus, hold, optimistic=optimistic) as opened:
            try:
                yield opened
            except Exception as error:  # noqa: BLE001 - this is the defect
                failure = error
        if failure:
            raise failure

    replace(bus_class, "transaction", never_roll_back)


def replace(owner: object, name: str, by: object) -> None:
    """Replace an existing attribute."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} no longer has {name}")
    setattr(owner, name, by)


def _one_by_one(alone: Callable[[Execution, Unit, Delivery], Any]) -> None:
    async def never_together(_: Execution, _unit: Unit, _group: Sequence[Delivery]) -> None:
        raise _MustRunAlone

    replace(Execution, "_react_together", never_together)
    replace(Execution, "_run_alone", alone)


async def _react_then_settle(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
    async with execution._bus.transaction(hold=[delivery]) as transaction:
        outcome = await _react(execution, delivery, transaction)
    _die_between(delivery)
    await execution._settle_alone(unit, delivery, outcome)
    return outcome


async def _settle_then_react(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
    await execution._settle_alone(unit, delivery, Done())
    _die_between(delivery)
    async with execution._bus.transaction() as transaction:
        return await _react(execution, delivery, transaction)


async def _react(execution: Execution, delivery: Delivery, transaction: Transaction) -> Outcome:
    route = execution._dispatcher.route(delivery)
    assert isinstance(route, HandlerRoute)
    return await execution._react(delivery, route, transaction)


def _die_between(delivery: Delivery) -> None:
    """Die between two transactions that should be one."""
    if delivery.envelope.payload["script"].get(f"between:{delivery.attempt}") == "die":
        die()
