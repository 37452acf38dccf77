"""What follows from an answer is written once, whatever goes wrong while it is written."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kingdom.bus import (
    Acked,
    Answer,
    Attempt,
    Done,
    Finding,
    Outcome,
    Received,
    Rejected,
    Retry,
    Transaction,
    Unclear,
)
from kingdom.errors import Conflict
from tests.contract.outside import Payment, calls
from tests.contract.scene import Scene, eventually, ping
from tests.contract.test_effects import bill, book, ledger_state, nothing_open, paying

__all__ = ["book"]


class Following(Payment):
    """Publishes a follow-up once its call is answered; the first conclusion goes wrong in a chosen way."""

    def __init__(self, book: Path, trouble: BaseException | Outcome) -> None:
        super().__init__(book)
        self._trouble: BaseException | Outcome | None = trouble
        self.concluded = 0

    async def reconcile(self, attempt: Attempt) -> Finding:
        del attempt
        return Unclear("this bank has no counter to ask at")

    async def conclude(
        self, event: Received[dict[str, Any]], answer: Acked | Rejected, transaction: Transaction
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
    [Conflict("somebody was faster"), RuntimeError("a bug"), asyncio.CancelledError(), Retry(code="not yet")],
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
    # A conclusion that says "not yet" keeps what it wrote; one that failed keeps nothing.
    assert len(follow_ups) == (2 if isinstance(trouble, Retry) else 1)


class Refusing(Payment):
    """Refuses until the amount is right, and remembers how it was asked."""

    def __init__(self, book: Path) -> None:
        super().__init__(book)
        self.asked: list[Attempt] = []

    def request(self, event: Received[dict[str, Any]]) -> Mapping[str, Any]:
        return {"amount": event.payload.get("amount", 0)}

    async def call(self, attempt: Attempt) -> Answer:
        self.asked.append(attempt)
        return await super().call(attempt) if attempt.request["amount"] else Rejected("what amount?")


async def test_a_refused_call_is_made_anew_when_its_event_is_patched_and_redriven(scene: Scene, book: Path) -> None:
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
