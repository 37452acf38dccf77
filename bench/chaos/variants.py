"""Ways to get the bus wrong: each breaks the product's own classes, in a process of its own."""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres import bus as postgres_bus
from kingdom.backends.postgres.queries import load_queries
from kingdom.bus import worker
from kingdom.bus.delivery import Delivery
from kingdom.bus.effect import Honours
from kingdom.bus.execution import Execution, Unit
from kingdom.bus.ledger import Ledger
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.port import Renewal, Transaction
from kingdom.verify.script import die


def no_fence() -> None:
    """Settle and renew without looking at the token."""
    fenced = ("hold", "done", "done_ordered", "dead", "dead_ordered", "again", "release")
    _rewrite(dict.fromkeys(fenced, (r"lease_token = \(SELECT token FROM f\) AND ", "")))

    def renew(_: PostgresBus, leases: Mapping[int, timedelta]) -> Renewal:
        return Renewal(frozenset(leases), frozenset())

    _replace(PostgresBus, "renew", renew)


def no_reaper() -> None:
    """Never give back what a dead worker held."""

    async def reap(_: PostgresBus) -> int:
        return 0

    _replace(PostgresBus, "reap", reap)


def resend_on_unknown() -> None:
    """Take a call that nobody saw end for one that did not happen."""
    sent = Ledger.sent

    def send_again(ledger: Ledger, fence: int) -> Ledger:
        return sent(ledger._next(Honours.NOTHING) if ledger.latest.state in ("SENT", "UNKNOWN") else ledger, fence)

    _replace(Ledger, "sent", send_again)
    _replace(Ledger, "must_reconcile", property(lambda _: False))


def fresh_identifier() -> None:
    """Send what is absent under a new identifier, though its first sender may only be asleep."""
    following = Ledger._next

    def forget(ledger: Ledger, _honours: Honours, *, absent: bool = False) -> Ledger:
        return following(ledger, Honours.NOTHING, absent=absent)

    _replace(Ledger, "_next", forget)


def settle_outside() -> None:
    """Commit what a reaction wrote, then settle its event in a transaction of its own."""
    _one_by_one(_react_then_settle)


def settle_first() -> None:
    """Settle an event before its reaction has run: at most once."""
    _one_by_one(_settle_then_react)


def blame_batch() -> None:
    """Count every event of a lost lease as lost alone, and claim suspects together."""
    together = {"claim": (r"CASE WHEN \(SELECT crash_count FROM c LIMIT 1\).*?\bEND\b", "true")}
    blamed = {"reap": (r"CASE WHEN lease_token = ANY\(.*?\bEND\b", "greatest(2 - crash_count, 1)")}
    _rewrite(together | blamed)


def split_runs() -> None:
    """Run the events of one key that were claimed together side by side."""

    def runs(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
        return [[delivery] for delivery in deliveries]

    _replace(worker, "_runs", runs)


def never_roll_back() -> None:
    """Commit what a transaction has collected, also where its block has failed."""
    transaction = PostgresBus.transaction

    @asynccontextmanager
    async def commit_always(bus: PostgresBus, hold: Sequence[Delivery] = ()) -> AsyncIterator[Transaction]:
        failure: Exception | None = None
        async with transaction(bus, hold) as opened:
            try:
                yield opened
            except Exception as error:  # noqa: BLE001 - that is what is wrong with it
                failure = error
        if failure:
            raise failure

    _replace(PostgresBus, "transaction", commit_always)


VARIANTS: Mapping[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        no_fence,
        no_reaper,
        resend_on_unknown,
        fresh_identifier,
        settle_outside,
        settle_first,
        blame_batch,
        split_runs,
        never_roll_back,
    )
}


def _rewrite(changes: Mapping[str, tuple[str, str]]) -> None:
    """Change named queries; a pattern that fits no more is an error, not a variant that breaks nothing."""

    def broken(schema: str) -> dict[str, Any]:
        queries: dict[str, Any] = dict(load_queries(schema))
        for name, (pattern, replacement) in changes.items():
            queries[name], count = re.subn(pattern, replacement, queries[name], flags=re.DOTALL)
            if not count:
                raise LookupError(f"query {name} does not look like {pattern!r} any more")
        return queries

    _replace(postgres_bus, "load_queries", broken)


def _replace(owner: object, name: str, by: object) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name} any more")
    setattr(owner, name, by)


def _one_by_one(alone: Callable[[Execution, Unit, Delivery], Any]) -> None:
    async def never_together(execution: Execution, unit: Unit) -> None:
        await execution._one_by_one(unit)

    _replace(Execution, "_react_together", never_together)
    _replace(Execution, "_alone", alone)


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
