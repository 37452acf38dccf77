"""An external call is never repeated without proof that it did not happen."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kingdom.bus import EFFECTS, Dispatcher, Envelope, Event, Idempotency, Record, find_ledger
from kingdom.bus.effects.effect import Absent, Attempt, CallResult, Present, ReconcileResult, Throttled, Unclear
from kingdom.bus.effects.ledger import Ledger
from kingdom.clock import utc_now
from tests.contract.aging import time_passing
from tests.contract.outside import Payment, be_cancelled, calls
from tests.contract.processes import child
from tests.contract.scene import ATTEMPTS, HOUR, Scene, eventually

# The remaining fields of a ledger from the version that did not list events yet.
_OLD_LEDGER_FIELDS = {"response": None, "awaiting": False, "concluded": False}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book"


def bill(invoice: int = 1) -> Envelope:
    return Envelope(type="Bill", stream="free", payload={"invoice": invoice})


@asynccontextmanager
async def paying(scene: Scene, payment: Payment) -> AsyncIterator[None]:
    dispatcher = Dispatcher()
    dispatcher.effect("Bill", payment)
    async with scene.second() as bus, scene.working(dispatcher, "free", bus=bus):
        yield


async def ledger_of(scene: Scene) -> Ledger:
    async with scene.bus.transaction() as transaction:
        ledger = await find_ledger(transaction, "bank", "invoice-1")
    assert ledger is not None
    return ledger


async def ledger_state(scene: Scene) -> str:
    return (await ledger_of(scene)).record.state


def nothing_open(scene: Scene) -> bool:
    return not [row for row in scene.picture.rows if row.open]


async def test_a_call_whose_worker_died_before_its_answer_is_found_and_not_repeated(scene: Scene, book: Path) -> None:
    event = bill()
    await scene.bus.publish(event)
    async with child(scene, "pay_and_die", str(book)) as victim:
        await eventually(lambda: victim.has_ended, "the worker dies after its call")
    assert len(calls(book)) == 1
    assert await ledger_state(scene) == "SENT"
    await scene.lose_all()
    async with paying(scene, Payment(book)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert len(calls(book)) == 1
    assert await scene.status(event) == "DONE"
    assert await ledger_state(scene) == "ACKED"


@pytest.mark.parametrize("idempotency", [Idempotency.IDENTIFIER, Idempotency.FENCE, Idempotency.TIME])
async def test_a_call_that_is_proven_absent_is_made_once(scene: Scene, book: Path, idempotency: Idempotency) -> None:
    event = bill()
    await scene.bus.publish(event)
    async with child(scene, "die_before_paying", str(book)) as victim:
        await eventually(lambda: victim.has_ended, "the worker dies before its call")
    assert calls(book) == []
    await scene.lose_all()
    async with paying(scene, Payment(book, idempotency)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert len(calls(book)) == 1
    assert await scene.status(event) == "DONE"


async def test_the_clock_of_the_store_decides_when_an_absent_call_may_be_made_again(
    scene: Scene, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Payment(book, Idempotency.TIME)
    slow.target = replace(slow.target, settles_after=HOUR)
    event = bill()
    await scene.bus.publish(event)
    async with child(scene, "die_before_paying", str(book)) as victim:
        await eventually(lambda: victim.has_ended, "the worker dies before its call")
    await scene.lose_all()
    # The clock of the next host is ahead.
    monkeypatch.setattr("kingdom.bus.effects.perform.utc_now", lambda: utc_now() + 2 * HOUR, raising=False)
    async with paying(scene, slow):
        await eventually(lambda: _waits_for_the_call_to_appear(scene, event), "the event waits")
    assert calls(book) == []


async def test_an_event_waits_if_its_call_may_have_arrived_during_the_lookup(scene: Scene, book: Path) -> None:
    looks = 0

    class Slow(Payment):
        async def call(self, attempt: Attempt) -> CallResult:
            raise ConnectionError(f"no answer to {attempt.number}")

        async def reconcile(self, attempt: Attempt) -> ReconcileResult:
            del attempt
            nonlocal looks
            looks += 1
            # If the clock of the store can be moved, two hours pass before the response.
            passing.enter_context(time_passing(scene.backend, 2 * HOUR))
            return Absent()

    slow = Slow(book, Idempotency.TIME)
    slow.target = replace(slow.target, settles_after=HOUR)
    event = bill()
    await scene.bus.publish(event)
    with ExitStack() as passing:
        async with paying(scene, slow):
            await eventually(lambda: _waits_for_the_call_to_appear(scene, event), "the event waits")
    assert looks == 1


async def _waits_for_the_call_to_appear(scene: Scene, event: Envelope) -> bool:
    return "but still may" in ((await scene.situation(event)).error_message or "")


async def test_an_absent_call_to_a_target_without_idempotency_is_not_sent_and_ends_dead(
    scene: Scene, book: Path
) -> None:
    event = bill()
    await scene.bus.publish(event)
    async with child(scene, "die_before_paying", str(book)) as victim:
        await eventually(lambda: victim.has_ended, "the worker dies before its call")
    await scene.lose_all()
    async with paying(scene, Payment(book, Idempotency.NOTHING)):
        await eventually(lambda: nothing_open(scene), "the event is given up")
    assert calls(book) == []
    situation = await scene.situation(event)
    assert (situation.status, situation.error_code) == ("DEAD", "effect_unclear")
    assert await scene.log_types() == ["effect.unclear"]


async def test_an_event_ends_although_the_record_of_its_call_cannot_be_read(scene: Scene, book: Path) -> None:
    event = bill()
    async with scene.bus.transaction() as transaction:
        record = Ledger.open("invoice-1", "bank", {}, "").record_sent(1).record
        await transaction.put(record.replace(doc={"attempts": "of another version"}))
        await transaction.publish(event)
    async with paying(scene, Payment(book)):
        (letter,) = await eventually(scene.dead, "the event is dead")
    assert str(letter.error_message).startswith("Unreadable: ")
    assert calls(book) == []


async def test_a_stopped_worker_that_sends_late_uses_the_identifier_of_its_successor(scene: Scene, book: Path) -> None:
    await scene.bus.publish(bill())
    async with child(scene, "pay_late", str(book)) as zombie:
        assert (await zombie.read_facts())["paying"]
        await zombie.stop_unlocked()
        await scene.until_nothing_is_held()
        async with paying(scene, Payment(book)):
            await eventually(lambda: nothing_open(scene), "another worker has paid")
        zombie.wake()
        zombie.go_on()
        await eventually(lambda: len(calls(book)) == 2, "the zombie sends too late")
        # The target executes each identifier once.
        assert len(set(calls(book))) == 1
    assert await ledger_state(scene) == "ACKED"


async def test_two_events_with_one_key_are_one_effect(scene: Scene, book: Path) -> None:
    await scene.bus.publish(bill(1), bill(1), bill(2))
    async with paying(scene, Payment(book)):
        await eventually(lambda: nothing_open(scene), "all are done")
    # The second worker may send the absent call again, with the same identifier, which its target executes once.
    assert len(set(calls(book))) == 2


async def test_one_key_on_two_targets_is_two_effects(scene: Scene, tmp_path: Path) -> None:
    books = {"free": tmp_path / "bank", "other": tmp_path / "post"}
    bank, post = Payment(books["free"]), Payment(books["other"])
    post.target = replace(bank.target, name="post: office")
    dispatcher = Dispatcher()
    dispatcher.effect("Both", bank, stream="free")
    dispatcher.effect("Both", post, stream="other")
    await scene.bus.publish(Envelope(type="Both", payload={"invoice": 1}))
    async with scene.working(dispatcher, *books):
        await eventually(lambda: [row.stream for row in scene.picture.rows] == ["line"], "both are done")
    assert [len(calls(book)) for book in books.values()] == [1, 1]


class PaymentByKey(Payment):
    """Its events name their keys."""

    def key(self, event: Event[dict[str, Any]]) -> str:
        return str(event.payload["key"])


# The ledger of the key "a" on the target "post" has the id "post:a" if another target already uses the key.
@pytest.mark.parametrize("keys", [("a", "post:a"), ("post:a", "a")])
async def test_effects_whose_ledgers_would_have_the_same_id_are_two_effects(
    scene: Scene, tmp_path: Path, keys: tuple[str, str]
) -> None:
    bank, post = PaymentByKey(tmp_path / "bank"), PaymentByKey(tmp_path / "post")
    post.target = replace(bank.target, name="post")
    dispatcher = Dispatcher()
    dispatcher.effect("Bill", bank, stream="free")
    dispatcher.effect("Bill", post, stream="other")
    async with scene.working(dispatcher, "free", "other"):
        for stream, key in (("free", "a"), *(("other", key) for key in (*keys, *keys))):
            await scene.bus.publish(Envelope(type="Bill", stream=stream, payload={"key": key, "invoice": 1}))
            await eventually(lambda: nothing_open(scene), "the event is done")
    assert await scene.dead() == []
    assert [len(calls(tmp_path / book)) for book in ("bank", "post")] == [1, 2]


@pytest.mark.parametrize(("target", "made"), [("bank", 1), ("another bank", 2)])
async def test_a_ledger_of_an_earlier_version_counts_only_for_its_own_target(
    scene: Scene, book: Path, target: str, made: int
) -> None:
    book.write_text("the-call\n")
    attempt = {"number": 1, "identifier": "the-call", "state": "SENT", "fence": 1, "sent_at": None}
    doc = {"target": target, "request": {"invoice": 1}, "attempts": [attempt | {"inherited": False, "note": ""}]}
    old = Record(kind=EFFECTS.name, id="invoice-1", state="SENT", indexed={"owner": ""}, doc=doc | _OLD_LEDGER_FIELDS)
    event = bill()
    async with scene.bus.transaction() as transaction:
        await transaction.put(old)
        await transaction.publish(event)
    async with paying(scene, Payment(book)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert len(calls(book)) == made
    assert (await scene.status(event), await ledger_state(scene)) == ("DONE", "ACKED")


async def test_a_throttled_call_waits_and_goes_out_under_a_new_identifier(scene: Scene, book: Path) -> None:
    seen: list[str] = []

    class Busy(Payment):
        async def call(self, attempt: Attempt) -> CallResult:
            seen.append(attempt.identifier)
            return await super().call(attempt) if len(seen) > 1 else Throttled(None)

    event = bill()
    await scene.bus.publish(event)
    async with paying(scene, Busy(book)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert len(set(seen)) == 2
    assert calls(book) == seen[1:]
    assert [attempt.number for attempt in (await ledger_of(scene)).document.attempts] == [1, 2]


async def test_a_call_that_failed_without_an_answer_is_looked_up_first(scene: Scene, book: Path) -> None:
    def lose_the_answer() -> None:
        raise ConnectionError("the answer is lost")

    await scene.bus.publish(bill())
    async with paying(scene, Payment(book, Idempotency.NOTHING, after=lose_the_answer)):
        await eventually(lambda: nothing_open(scene), "the event is done")
    assert len(calls(book)) == 1
    assert await ledger_state(scene) == "ACKED"


async def test_a_call_that_awaits_a_cancelled_task_is_unknown_and_counts_as_an_attempt(
    scene: Scene, book: Path
) -> None:
    asked = 0

    class Cancelled(Payment):
        async def call(self, attempt: Attempt) -> CallResult:
            del attempt
            nonlocal asked
            asked += 1
            await be_cancelled()
            raise AssertionError

    event = bill()
    await scene.bus.publish(event)
    async with paying(scene, Cancelled(book)):
        await eventually(lambda: nothing_open(scene), "the event is given up")
    assert asked == ATTEMPTS
    situation = await scene.situation(event)
    assert (situation.status, situation.error_code) == ("DEAD", "effect_unclear")
    assert await ledger_state(scene) == "UNKNOWN"


async def test_a_lookup_that_awaits_a_cancelled_task_is_unclear_and_counts_as_an_attempt(
    scene: Scene, book: Path
) -> None:
    looks = 0

    class Cancelled(Payment):
        async def call(self, attempt: Attempt) -> CallResult:
            del attempt
            raise ConnectionError("the answer is lost")

        async def reconcile(self, attempt: Attempt) -> ReconcileResult:
            del attempt
            nonlocal looks
            looks += 1
            await be_cancelled()
            raise AssertionError

    event = bill()
    await scene.bus.publish(event)
    async with paying(scene, Cancelled(book)):
        await eventually(lambda: nothing_open(scene), "the event is given up")
    assert looks == ATTEMPTS - 1
    situation = await scene.situation(event)
    assert (situation.status, situation.error_code) == ("DEAD", "effect_unclear")


async def test_results_with_text_that_no_store_can_keep_are_recorded(scene: Scene, book: Path) -> None:
    class Babbling(Payment):
        async def call(self, attempt: Attempt) -> CallResult:
            await super().call(attempt)
            raise ConnectionError("cut off at \x00")

        async def reconcile(self, attempt: Attempt) -> ReconcileResult:
            first = attempt.request["invoice"] == 1
            return Present({"it\x00s": ["\ud800"]}) if first else Unclear("what\x00?")

    found, lost = bill(1), bill(2)
    await scene.bus.publish(found, lost)
    async with paying(scene, Babbling(book)):
        await eventually(lambda: nothing_open(scene), "one is done and the other given up")
    assert await scene.status(found) == "DONE"
    assert (await scene.situation(lost)).attempt == ATTEMPTS
    assert await scene.log_types() == ["effect.unclear"]
