"""The consequences of a result are written once, whatever goes wrong in the meantime."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.bus import (
    EFFECTS,
    Accepted,
    Acked,
    Attempt,
    Bus,
    CallResult,
    Dead,
    Defer,
    Done,
    Event,
    Idempotency,
    Outcome,
    ReconcileResult,
    Record,
    Rejected,
    Retention,
    Retry,
    Transaction,
    Unclear,
    close_effect,
    find_ledger,
)
from kingdom.bus.effects.ledger import Ledger
from kingdom.errors import Conflict
from tests.contract.aging import time_passing
from tests.contract.outside import Payment, calls
from tests.contract.scene import KINDS, NO_WAIT, TOPOLOGY, Scene, eventually, ping
from tests.contract.test_effects import bill, book, ledger_state, nothing_open, paying

__all__ = ["book"]


class Following(Payment):
    """Publishes a follow-up in `conclude`. The first conclusion fails in a chosen way."""

    def __init__(self, book: Path, trouble: BaseException | Outcome) -> None:
        super().__init__(book)
        self._trouble: BaseException | Outcome | None = trouble
        self.concluded = 0

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        del attempt
        return Unclear("this bank answers no questions")

    async def conclude(
        self, event: Event[dict[str, Any]], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        del event, answer
        self.concluded += 1
        await transaction.publish(ping(7))
        trouble, self._trouble = self._trouble, None
        if isinstance(trouble, BaseException):
            raise trouble
        return trouble or Done()


@pytest.mark.parametrize(
    "trouble",
    [Conflict("another was faster"), RuntimeError("a bug"), asyncio.CancelledError(), Retry(code="not yet")],
    ids=lambda trouble: type(trouble).__name__,
)
async def test_an_answer_is_kept_while_its_conclusion_is_tried_again(
    scene: Scene, book: Path, trouble: BaseException | Outcome
) -> None:
    event, payment = bill(), Following(book, trouble)
    await scene.operations.pause("other", reason="not of interest", actor="tester")
    await scene.bus.publish(event)
    async with paying(scene, payment):

        async def ended() -> bool:
            return await scene.status(event) == "DONE"

        await eventually(ended, "the event is done")
    assert len(calls(book)) == 1
    assert payment.concluded == 2
    assert await ledger_state(scene) == "ACKED"
    follow_ups = [row for row in scene.picture.rows if row.open]
    # A conclusion that returns Retry keeps its writes. A conclusion that raises an error keeps none.
    assert len(follow_ups) == (2 if isinstance(trouble, Retry) else 1)


class Overtaken(Payment):
    """Counts in a record in `conclude`. The first time, another transaction changes the record first."""

    def __init__(self, book: Path, bus: Bus) -> None:
        super().__init__(book)
        self._bus = bus
        self._is_overtaken = False

    async def conclude(
        self, event: Event[dict[str, Any]], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        del event, answer
        await count(transaction)
        if not self._is_overtaken:
            self._is_overtaken = True
            async with self._bus.transaction() as faster:
                await count(faster)
        return Done()


async def count(transaction: Transaction) -> None:
    known = await transaction.get("tally", "count") or Record(
        kind="tally", id="count", state="counting", doc={"times": 0}
    )
    await transaction.put(known.replace(doc={"times": known.doc["times"] + 1}))


async def test_a_conclusion_that_could_not_be_committed_is_repeated(scene: Scene, book: Path) -> None:
    event = bill()
    async with scene.bus.transaction() as transaction:
        await count(transaction)
    await scene.bus.publish(event)
    async with scene.backend.open(TOPOLOGY, KINDS) as other, paying(scene, Overtaken(book, other)):

        async def ended() -> bool:
            return await scene.status(event) == "DONE"

        await eventually(ended, "the event is done")
    assert len(calls(book)) == 1
    async with scene.bus.transaction() as transaction:
        counted = await transaction.get("tally", "count")
    assert counted is not None
    assert counted.doc == {"times": 3}


class Refusing(Payment):
    """Refuses until the amount is right, and remembers the requests."""

    def __init__(self, book: Path) -> None:
        super().__init__(book)
        self.asked: list[Attempt] = []

    def request(self, event: Event[dict[str, Any]]) -> Mapping[str, Any]:
        return {"amount": event.payload.get("amount", 0)}

    async def call(self, attempt: Attempt) -> CallResult:
        self.asked.append(attempt)
        return await super().call(attempt) if attempt.request["amount"] else Rejected("what amount?")


async def test_a_refused_call_is_made_again_when_its_event_is_patched_and_redriven(scene: Scene, book: Path) -> None:
    event, payment = bill(), Refusing(book)
    await scene.bus.publish(event)
    async with paying(scene, payment):
        (letter,) = await eventually(scene.dead, "the event is dead")
        assert letter.error_code == "rejected"
        await scene.operations.patch(event.event_id, "free", {"invoice": 1, "amount": 5}, actor="tester")
        await scene.operations.redrive([letter.position], actor="tester")
        await eventually(lambda: nothing_open(scene), "the event ends again")
    assert await scene.status(event) == "DONE"
    assert [attempt.request for attempt in payment.asked] == [{"amount": 0}, {"amount": 5}]
    assert len({attempt.identifier for attempt in payment.asked}) == 2
    assert len(calls(book)) == 1
    assert await ledger_state(scene) == "ACKED"


class RefusingLater(Payment):
    """Accepts a call. Its bank closes it as rejected even before its worker has recorded that."""

    def __init__(self, book: Path, bus: Bus) -> None:
        super().__init__(book)
        self._bus = bus

    async def call(self, attempt: Attempt) -> CallResult:
        await super().call(attempt)
        async with self._bus.transaction() as transaction:
            assert await close_effect(transaction, "bank", "invoice-1", Rejected("no money"))
        return Accepted()


async def test_a_call_that_is_closed_as_rejected_before_it_is_recorded_as_accepted_is_not_made_again(
    scene: Scene, book: Path
) -> None:
    event = bill()
    async with scene.backend.open(TOPOLOGY, KINDS) as other, paying(scene, RefusingLater(book, other)):
        await scene.bus.publish(event)
        await eventually(lambda: nothing_open(scene), "the event is done")
        assert (len(calls(book)), await scene.status(event), await ledger_state(scene)) == (1, "DONE", "REJECTED")
        # A new event makes a new attempt, as after any rejection.
        await scene.bus.publish(bill())
        await eventually(lambda: nothing_open(scene), "the second event is done")
    assert len(calls(book)) == 2


async def test_a_redriven_event_makes_a_new_call_if_its_open_call_was_closed_as_rejected(
    scene: Scene, book: Path
) -> None:
    event = bill()
    async with scene.bus.transaction() as transaction:
        sent = Ledger.open("invoice-1", "bank", {}, "").add_event(event.event_id).record_sent(1)
        await transaction.put(sent.record)
        await transaction.publish(event)
    await scene.cancel(event)
    async with scene.bus.transaction() as transaction:
        assert await close_effect(transaction, "bank", "invoice-1", Rejected("no money"))
    [letter] = await scene.dead()
    await scene.operations.redrive([letter.position], actor="tester")
    async with paying(scene, Payment(book)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert (len(calls(book)), await scene.status(event), await ledger_state(scene)) == (1, "DONE", "ACKED")


MONTH = timedelta(days=31)


class Unconcluded(Payment):
    """Pays, and concludes as `conclusion` says. Its target has no idempotency."""

    def __init__(self, book: Path, conclusion: Exception | Outcome) -> None:
        super().__init__(book, Idempotency.NOTHING)
        self.conclusion: Exception | Outcome = conclusion

    async def conclude(
        self, event: Event[dict[str, Any]], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        del event, answer, transaction
        if isinstance(self.conclusion, Exception):
            raise self.conclusion
        return self.conclusion


async def retain_after(scene: Scene, time: timedelta) -> int:
    with time_passing(scene.backend, time):
        return (await scene.operations.retain(Retention())).records_removed


@pytest.mark.parametrize("conclusion", [RuntimeError("a bug"), Dead("not like this")], ids=["failed", "dead"])
async def test_the_ledger_of_a_dead_letter_is_kept_and_its_redrive_does_not_call_again(
    scene: Scene, book: Path, conclusion: Exception | Outcome
) -> None:
    event, payment = bill(), Unconcluded(book, conclusion)
    await scene.bus.publish(event)
    async with paying(scene, payment):
        (letter,) = await eventually(scene.dead, "the event is dead")
    assert await retain_after(scene, MONTH) == 0
    payment.conclusion = Done()
    async with paying(scene, payment):
        await scene.operations.redrive([letter.position], actor="tester")
        await eventually(lambda: nothing_open(scene) and not scene.picture.rows, "the event is done")
    assert len(calls(book)) == 1
    assert await ledger_state(scene) == "ACKED"
    assert await retain_after(scene, MONTH) == 1


async def test_the_retention_of_a_ledger_begins_at_its_conclusion_and_not_at_its_answer(
    scene: Scene, book: Path
) -> None:
    event, payment = bill(), Unconcluded(book, Defer.by(NO_WAIT, "not yet"))
    await scene.bus.publish(event)
    async with paying(scene, payment):
        await eventually(lambda: len(calls(book)) == 1, "it is paid")
    assert await retain_after(scene, MONTH) == 0
    payment.conclusion = Done()
    async with paying(scene, payment):
        await eventually(lambda: not scene.picture.rows, "the event is done")
    assert await retain_after(scene, NO_WAIT) == 0
    assert await retain_after(scene, MONTH) == 1


async def test_an_unconcluded_ledger_of_an_earlier_version_is_kept(scene: Scene, book: Path) -> None:
    await scene.bus.publish(bill())
    # An earlier version treated every answered call as finished, and its ledgers listed no events.
    earlier = replace(EFFECTS, final_when={}, kept_for=None)
    async with paying(scene, Unconcluded(book, RuntimeError("a bug"))):
        await eventually(scene.dead, "the event is dead")
    async with scene.backend.open(TOPOLOGY, [earlier]) as bus, bus.transaction() as transaction:
        ledger = await find_ledger(transaction, "bank", "invoice-1")
        assert ledger is not None
        record = ledger.record
        doc = {name: value for name, value in record.doc.items() if name != "events"}
        await transaction.put(record.replace(doc=doc))
    assert await retain_after(scene, MONTH) == 0
    async with scene.bus.transaction() as transaction:
        concluded = record.replace(version=record.version + 1, doc=doc | {"concluded": True})
        await transaction.put(concluded)
    assert await retain_after(scene, MONTH) == 1
