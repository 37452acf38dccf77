"""Ways to get the bus wrong on any backend: each breaks the product's own classes, in a process of its own."""

import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kingdom.bus import worker
from kingdom.bus.delivery import Delivery
from kingdom.bus.effect import Idempotency
from kingdom.bus.envelope import Envelope
from kingdom.bus.execution import Execution, Unit
from kingdom.bus.keeper import HeldLease
from kingdom.bus.ledger import Ledger
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.port import Bus, LeaseRenewal, Transaction
from kingdom.bus.stream import Topology
from kingdom.verify import process
from kingdom.verify.script import die
from kingdom.verify.workload import topology

LAZY_SECONDS = 30


def resend_on_unknown() -> None:
    """Take a call that nobody saw end for one that did not happen."""
    sent = Ledger.sent

    def send_again(ledger: Ledger, fence: int, at: datetime | None = None) -> Ledger:
        again = ledger.latest.state in ("SENT", "UNKNOWN")
        return sent(ledger._next(Idempotency.NOTHING) if again else ledger, fence, at)

    replace(Ledger, "sent", send_again)
    replace(Ledger, "must_reconcile", property(lambda _: False))


def fresh_identifier() -> None:
    """Send what is absent under a new identifier, though its first sender may only be asleep."""
    following = Ledger._next

    def forget(ledger: Ledger, _honours: Idempotency, *, absent: bool = False) -> Ledger:
        return following(ledger, Idempotency.NOTHING, absent=absent)

    replace(Ledger, "_next", forget)


def settle_outside() -> None:
    """Commit what a reaction wrote, then settle its event in a transaction of its own."""
    _one_by_one(_react_then_settle)


def settle_first() -> None:
    """Settle an event before its reaction has run: at most once."""
    _one_by_one(_settle_then_react)


def split_runs() -> None:
    """Run the events of one key that were claimed together side by side."""

    def runs(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
        return [[delivery] for delivery in deliveries]

    replace(worker, "split_into_runs", runs)


def impatient() -> None:
    """Send what is absent again at once, though its target has asked for some time."""
    replace(Ledger, "settles_in", lambda *_: None)


def reversed_order() -> None:
    """Turn the events of a transaction round."""
    publish = Transaction.publish

    async def publish_backwards(transaction: Transaction, *envelopes: Envelope, at: datetime | None = None) -> None:
        await publish(transaction, *envelopes, at=at)
        copies = dict(reversed(transaction.changes.copies.items()))
        transaction.changes.copies.clear()
        transaction.changes.copies.update(copies)

    replace(Transaction, "publish", publish_backwards)


def no_delay() -> None:
    """Let delayed events be due at once."""
    publish = Transaction.publish

    async def publish_now(transaction: Transaction, *envelopes: Envelope, at: datetime | None = None) -> None:
        del at
        await publish(transaction, *envelopes)

    replace(Transaction, "publish", publish_now)


def generous_keys() -> None:
    """Let everybody win a dedup key."""

    async def once(transaction: Transaction, scope: str, key: str, keep: timedelta) -> bool:
        await transaction._take_key(scope, key, keep)
        return True

    replace(Transaction, "once", once)


def no_block() -> None:
    """Let the later ones of a key pass a dead event, also where it must block them."""

    def passing(*leases: timedelta) -> Topology:
        streams = topology(*leases)
        return Topology(dataclasses.replace(streams.stream(name), on_dead="skip") for name in streams.names())

    replace(process, "topology", passing)


VARIANTS: Mapping[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        resend_on_unknown,
        fresh_identifier,
        settle_outside,
        settle_first,
        split_runs,
        impatient,
        reversed_order,
        no_delay,
        generous_keys,
        no_block,
    )
}


def variants_of(bus_class: type[Bus]) -> Mapping[str, Callable[[], None]]:
    """Return the ways to get any bus wrong by its port alone."""
    return {
        "no_reaper": partial(reap_never, bus_class),
        "lazy_reaper": partial(reap_late, bus_class),
        "no_renewal": partial(forget_renewals, bus_class),
        "torn_publish": partial(commit_in_parts, bus_class),
        "never_roll_back": partial(commit_always, bus_class),
    }


def reap_never(bus_class: type[Bus]) -> None:
    """Let a bus never give back what a dead worker held."""

    async def reap(_: Bus) -> int:
        return 0

    replace(bus_class, "reap", reap)


def forget_renewals(bus_class: type[Bus]) -> None:
    """Let a bus answer that leases are renewed, and renew none."""

    def renew(_: Bus, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        return LeaseRenewal(frozenset(leases), frozenset())

    replace(bus_class, "renew", renew)


def reap_late(bus_class: type[Bus]) -> None:
    """Let a bus look for expired leases only when its process is old enough."""
    reap, began = bus_class.reap, time.monotonic()

    async def sleep_on(bus: Bus) -> int:
        return await reap(bus) if time.monotonic() - began > LAZY_SECONDS else 0

    replace(bus_class, "reap", sleep_on)


def commit_in_parts(bus_class: type[Bus]) -> None:
    """Let a bus commit the first half of what is published, and die before the second."""
    transaction = bus_class.transaction

    @asynccontextmanager
    async def tear(bus: Bus, hold: Sequence[Delivery] = ()) -> AsyncIterator[Transaction]:
        async with transaction(bus, hold) as opened:
            yield opened
            copies = opened.changes.copies
            is_torn = len(copies) > 1 and not opened.changes.settlements
            for key in list(copies)[len(copies) // 2 :] if is_torn else ():
                del copies[key]
        if is_torn:
            die()

    replace(bus_class, "transaction", tear)


def rely_on_leases() -> None:
    """Let a worker go on with a lease whose time is over, as one does that blocks its loop: the fence has to hold."""
    replace(HeldLease, "lost_at", property(lambda _: math.inf))


def commit_always(bus_class: type[Bus]) -> None:
    """Let the transactions of a bus be committed, also where their block has failed."""
    transaction = bus_class.transaction

    @asynccontextmanager
    async def never_roll_back(bus: Bus, hold: Sequence[Delivery] = ()) -> AsyncIterator[Transaction]:
        failure: Exception | None = None
        async with transaction(bus, hold) as opened:
            try:
                yield opened
            except Exception as error:  # noqa: BLE001 - that is what is wrong with it
                failure = error
        if failure:
            raise failure

    replace(bus_class, "transaction", never_roll_back)


def replace(owner: object, name: str, by: object) -> None:
    """Put something else in the place of an attribute; one that is not there any more is an error."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name} any more")
    setattr(owner, name, by)


def _one_by_one(alone: Callable[[Execution, Unit, Delivery], Any]) -> None:
    async def never_together(execution: Execution, unit: Unit) -> None:
        await execution._one_by_one(unit)

    replace(Execution, "_react_together", never_together)
    replace(Execution, "_alone", alone)


async def _react_then_settle(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
    async with execution._bus.transaction(hold=[delivery]) as transaction:
        outcome = await _react(execution, delivery, transaction)
    _die_between(delivery)
    await execution._settle_all(unit, {delivery: outcome})
    return outcome


async def _settle_then_react(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
    await execution._settle_all(unit, {delivery: Done()})
    _die_between(delivery)
    async with execution._bus.transaction() as transaction:
        return await _react(execution, delivery, transaction)


async def _react(execution: Execution, delivery: Delivery, transaction: Transaction) -> Outcome:
    return await execution._react(delivery, execution._dispatcher.route(delivery), transaction)


def _die_between(delivery: Delivery) -> None:
    """Die between two transactions that should have been one."""
    if delivery.envelope.payload["script"].get(f"between:{delivery.attempt}") == "die":
        die()
