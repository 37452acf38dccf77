"""Effects on a real HTTP server: what is sent, what is recorded, and how each answer is handled."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Envelope,
    Event,
    Idempotency,
    LogCursor,
    Record,
    RecordQuery,
    Target,
    Transaction,
    close_effect,
    find_ledger,
)
from tests.contract.complete_log import CompleteLogOperations
from tests.integration.http_effect import HttpEffect, call, calls
from tests.integration.http_target import HttpTarget, http_target
from tests.integration.local_effect import LocalEffect
from tests.integration.running import HOUR, Limits, at_work, event, eventually, open_bus, rows, stream, until_all

IDENTIFIER = Target(name="http", idempotency=Idempotency.IDENTIFIER)
FENCE = Target(name="http", idempotency=Idempotency.FENCE)
NOTHING = Target(name="http", idempotency=Idempotency.NOTHING)


@pytest.fixture
def target() -> Iterator[HttpTarget]:
    with http_target() as target:
        yield target


@asynccontextmanager
async def bus_of(dsn: str, *, attempts: int = 10) -> AsyncIterator[PostgresBus]:
    async with open_bus(dsn, calls(attempts=attempts), stream("made", "Made")) as bus:
        yield bus


@asynccontextmanager
async def calling(bus: PostgresBus, target: HttpTarget, declared: Target, **options: Any) -> AsyncIterator[None]:
    dispatcher = Dispatcher()
    dispatcher.effect("Call", HttpEffect(target.url, declared))
    async with at_work(bus, dispatcher, "calls", **options):
        yield


async def ledger(bus: PostgresBus, key: str) -> Record:
    async with bus.transaction() as transaction:
        found = await find_ledger(transaction, "http", key)
    assert found is not None
    return found.record


async def states(bus: PostgresBus, key: str) -> list[str]:
    return [attempt["state"] for attempt in (await ledger(bus, key)).doc["attempts"]]


async def reaches(bus: PostgresBus, envelope: Envelope, status: str, code: str | None = None) -> None:
    async def reached() -> bool:
        found = await event(bus, envelope)
        return bool(found["status"] == status and found["attempt_count"] >= 0 and found["last_error_code"] == code)

    await eventually(reached)


async def test_a_call_is_made_once_recorded_and_followed_up_in_one_transaction(dsn: str, target: HttpTarget) -> None:
    async with bus_of(dsn) as bus, calling(bus, target, NOTHING):
        envelope = call("a", size=3)
        await bus.publish(envelope)
        await reaches(bus, envelope, "DONE")
        record = await ledger(bus, "a")
        follow_ups = await rows(bus, "SELECT payload_json FROM kingdom.outbox_all WHERE event_type = 'Made'")
        together = await rows(
            bus,
            "SELECT r.xmin = e.xmin AS same FROM kingdom.record r, kingdom.outbox_event e WHERE e.event_type = 'Made'",
        )
    (seen,) = target.seen
    (attempt,) = record.doc["attempts"]
    assert seen.body == record.doc["request"] == {"name": "a", "size": 3}
    assert (record.state, attempt["state"], attempt["identifier"]) == ("ACKED", "ACKED", seen.identifier)
    assert (attempt["fence"], record.doc["response"]) == (seen.fence, {"made": seen.identifier})
    assert follow_ups == [{"payload_json": {"name": "a"}}]
    assert together == [{"same": True}]


async def test_the_ledger_is_readable_as_records(dsn: str, target: HttpTarget) -> None:
    target.manners = ["do", "refuse", "do"]
    async with bus_of(dsn) as bus, calling(bus, target, NOTHING, concurrency=1):
        for name in ("a", "b", "c"):
            envelope = Envelope(type="Call", payload={"name": name}, owner_id="me")
            await bus.publish(envelope)
            await reaches(bus, envelope, *(("DEAD", "rejected") if name == "b" else ("DONE", None)))
        async with bus.transaction() as transaction:
            acked = await transaction.find(RecordQuery(kind="effect", state="ACKED", index="owner", value="me"))
            rejected = await transaction.find(RecordQuery(kind="effect", state="REJECTED"))
    assert [record.id for record in acked] == ["a", "c"]
    assert [(record.id, record.doc["attempts"][0]["note"]) for record in rejected] == [("b", "HTTP 422")]


async def test_a_throttled_call_waits_for_the_requested_time_and_gets_a_new_identifier(
    dsn: str, target: HttpTarget
) -> None:
    target.manners, target.retry_after = ["throttle", "do"], "3600"
    async with bus_of(dsn) as bus:
        envelope = call("a")
        await bus.publish(envelope)
        async with calling(bus, target, IDENTIFIER):
            await reaches(bus, envelope, "PENDING", "deferred")
        record = await ledger(bus, "a")
        together = await rows(bus, "SELECT r.xmin = e.xmin AS same FROM kingdom.record r, kingdom.outbox_event e")
        waits = await rows(bus, "SELECT attempt_count, next_retry_at - updated_at AS wait FROM kingdom.outbox_event")
        await rows(bus, "UPDATE kingdom.outbox_event SET next_retry_at = now()")
        # The first worker would not call the target before Retry-After.
        async with calling(bus, target, IDENTIFIER):
            await reaches(bus, envelope, "DONE", "deferred")
        assert await states(bus, "a") == ["THROTTLED", "ACKED"]
    assert [attempt["state"] for attempt in record.doc["attempts"]] == ["THROTTLED", "PREPARED"]
    assert together == [{"same": True}]
    assert waits[0]["attempt_count"] == 0
    # The time is that of the database, and not earlier than the transaction that wrote it.
    assert HOUR <= waits[0]["wait"] < 2 * HOUR
    first, second = target.seen
    assert [attempt["identifier"] for attempt in record.doc["attempts"]] == [first.identifier, second.identifier]
    assert first.identifier != second.identifier


async def test_one_throttled_call_delays_the_other_calls_to_its_target(dsn: str, target: HttpTarget) -> None:
    target.manners, target.retry_after = ["throttle", "do"], "3600"
    async with bus_of(dsn) as bus, calling(bus, target, IDENTIFIER, concurrency=1):
        first, second = call("a"), call("b")
        await bus.publish(first)
        await reaches(bus, first, "PENDING", "deferred")
        await bus.publish(second)
        await reaches(bus, second, "PENDING", "deferred")
        assert (await event(bus, second))["last_error_message"] == "circuit of http is open"
    assert len(target.seen) == 1


async def test_a_closed_limiter_leaves_the_ledger_unchanged(dsn: str, target: HttpTarget) -> None:
    target.manners, target.retry_after = ["throttle"], "3600"
    async with bus_of(dsn) as bus, calling(bus, target, IDENTIFIER, concurrency=1):
        envelope = call("a")
        await bus.publish(envelope)
        await reaches(bus, envelope, "PENDING", "deferred")
        before = await ledger(bus, "a")
        await rows(bus, "UPDATE kingdom.outbox_event SET next_retry_at = now()")

        async def is_deferred_again() -> bool:
            return bool((await event(bus, envelope))["last_error_message"] == "circuit of http is open")

        await eventually(is_deferred_again)
        assert await ledger(bus, "a") == before


async def test_a_call_that_was_executed_but_not_answered_is_found_and_not_repeated(
    dsn: str, target: HttpTarget
) -> None:
    target.manners = ["do and drop", "do"]
    async with bus_of(dsn) as bus, calling(bus, target, NOTHING):
        envelope = call("a")
        await bus.publish(envelope)
        await reaches(bus, envelope, "DONE", "effect_unclear")
        record = await ledger(bus, "a")
        assert (await event(bus, envelope))["attempt_count"] == 2
    assert (record.state, record.doc["attempts"][0]["note"]) == ("ACKED", "found by reconcile")
    assert record.doc["response"] == {"made": target.done[0]}
    assert len(target.seen) == len(target.done) == 1


async def test_an_absent_call_is_sent_again_under_its_identifier_if_the_target_deduplicates(
    dsn: str, target: HttpTarget
) -> None:
    target.manners = ["fail", "do"]
    async with bus_of(dsn) as bus, calling(bus, target, IDENTIFIER):
        envelope = call("a")
        await bus.publish(envelope)
        await reaches(bus, envelope, "DONE", "effect_unclear")
        assert await states(bus, "a") == ["UNKNOWN", "ACKED"]
    first, second = target.seen
    assert first.identifier == second.identifier
    assert first.fence < second.fence
    assert target.done == [first.identifier]


async def test_an_absent_call_is_sent_again_under_a_new_identifier_if_the_target_checks_the_fence(
    dsn: str, target: HttpTarget
) -> None:
    target.manners, target.dedups = ["fail", "do"], False
    async with bus_of(dsn) as bus, calling(bus, target, FENCE):
        envelope = call("a")
        await bus.publish(envelope)
        await reaches(bus, envelope, "DONE", "effect_unclear")
        fences = [attempt["fence"] for attempt in (await ledger(bus, "a")).doc["attempts"]]
    first, second = target.seen
    assert first.identifier != second.identifier
    assert first.fence < second.fence
    assert fences == [second.fence, second.fence]
    assert target.done == [second.identifier]


@pytest.mark.parametrize("answers_questions", [True, False], ids=["absent", "unclear"])
async def test_an_unclear_call_is_never_repeated_and_its_event_ends_dead(
    dsn: str, target: HttpTarget, *, answers_questions: bool
) -> None:
    target.manners, target.answers_questions = ["fail"], answers_questions
    async with bus_of(dsn, attempts=3) as bus, calling(bus, target, NOTHING):
        envelope = call("a")
        await bus.publish(envelope)
        await reaches(bus, envelope, "DEAD", "effect_unclear")
        assert (await event(bus, envelope))["attempt_count"] == 3
        assert await states(bus, "a") == ["UNKNOWN"]
    async with bus_of(dsn) as bus:
        entries = [logged.entry for logged in await CompleteLogOperations(bus).read_log(LogCursor(), 10)]
    assert [(entry.type, entry.data["key"], entry.data["target"]) for entry in entries] == [
        ("effect.unclear", "a", "http")
    ]
    assert entries[0].trace_id == envelope.trace_id
    assert len(target.seen) == 1


async def test_an_accepted_effect_is_closed_later_by_an_event(dsn: str, target: HttpTarget) -> None:
    target.manners = ["accept"]
    dispatcher, closed = Dispatcher(), list[bool]()
    dispatcher.effect("Call", HttpEffect(target.url, NOTHING))

    @dispatcher.reaction("Finished")
    async def close(received: Event[dict[str, str]], transaction: Transaction) -> None:
        closed.append(await close_effect(transaction, "http", received.payload["name"], Acked({"result": 7})))

    async with open_bus(dsn, calls(), stream("made", "Made", "Finished")) as bus, at_work(bus, dispatcher):
        await bus.publish(call("a"))
        await until_all(bus, "DONE", 1)
        waiting = await ledger(bus, "a")
        for count in (2, 3):
            await bus.publish(Envelope(type="Finished", payload={"name": "a"}))
            await until_all(bus, "DONE", count)
        record = await ledger(bus, "a")
    assert (waiting.state, waiting.doc["awaiting"]) == ("SENT", True)
    assert (record.state, record.doc["response"], record.doc["awaiting"]) == ("ACKED", {"result": 7}, False)
    assert closed == [True, False]
    assert len(target.seen) == 1


async def test_an_open_circuit_defers_without_a_call_and_without_an_attempt(dsn: str, target: HttpTarget) -> None:
    target.manners = ["fail"]
    fragile = Target(name="http", failures_to_open=2, open_for=timedelta(hours=1))
    async with open_bus(dsn, stream("calls", "Call"), stream("made", "Made")) as bus:
        async with calling(bus, target, fragile, concurrency=1):
            for name in ("a", "b"):
                await bus.publish(call(name))
            envelope = call("c")
            await eventually(lambda: _called(target, 2))
            await bus.publish(envelope)
            await reaches(bus, envelope, "PENDING", "deferred")
            found = await event(bus, envelope)
        kept = await rows(bus, "SELECT id FROM kingdom.record WHERE id = 'c'")
    assert (found["attempt_count"], found["last_error_message"]) == (0, "circuit of http is open")
    assert {seen.body["name"] for seen in target.seen} == {"a", "b"}
    assert kept == []


async def test_calls_to_a_target_keep_its_rate_limit_and_calls_to_another_target_do_not_wait(
    dsn: str, target: HttpTarget
) -> None:
    dispatcher, count = Dispatcher(), 5
    dispatcher.effect("Call", HttpEffect(target.url, Target(name="slow", calls_per_second=1 / 3600, burst=1)))
    dispatcher.effect("Other", HttpEffect(target.url, Target(name="other")))
    streams = (stream("calls", "Call"), stream("others", "Other"), stream("made", "Made"))
    async with open_bus(dsn, *streams) as bus:
        slow = [call(f"slow {n}") for n in range(count)]
        others = [Envelope(type="Other", payload={"name": f"other {n}"}) for n in range(count)]
        await bus.publish(*slow, *others)
        async with at_work(bus, dispatcher, "calls", "others"):
            await eventually(lambda: _has(bus, DONE=count + 1, PENDING=count - 1))
        found = [await event(bus, envelope) for envelope in others]
        waits = await rows(
            bus,
            "SELECT next_retry_at - updated_at AS wait, attempt_count AS n FROM kingdom.outbox_event"
            " WHERE last_error_message = 'rate limit of slow' ORDER BY 1",
        )
    assert [(row["attempt_count"], row["last_error_code"]) for row in found] == [(1, None)] * count
    assert sorted(seen.body["name"].split()[0] for seen in target.seen) == ["other"] * count + ["slow"]
    # Each waiting call is deferred for an hour, and no attempt is counted.
    assert [(round(row["wait"] / HOUR), row["n"]) for row in waits] == [(place, 0) for place in range(1, count)]


@pytest.mark.parametrize("concurrency", [1, 4], ids=["one after another", "at the same time"])
async def test_two_events_with_one_key_are_one_call(dsn: str, target: HttpTarget, concurrency: int) -> None:
    async with bus_of(dsn) as bus, calling(bus, target, IDENTIFIER, concurrency=concurrency):
        envelopes = [call("same", number=number) for number in range(4)]
        await bus.publish(*envelopes)
        for envelope in envelopes:
            await eventually(lambda envelope=envelope: _done(bus, envelope))  # type: ignore[misc]
        record = await ledger(bus, "same")
        made = await rows(bus, "SELECT id FROM kingdom.outbox_all WHERE event_type = 'Made'")
    assert record.state == "ACKED"
    assert len(target.done) == 1
    assert {seen.identifier for seen in target.seen} == set(target.done)
    assert len(made) == 1


async def test_an_effect_that_exceeds_its_deadline_is_reconciled_and_not_repeated(dsn: str) -> None:
    sent = list[str]()

    async def hang(attempt: Attempt) -> CallResult:
        sent.append(attempt.identifier)
        await asyncio.Event().wait()
        return Acked()

    dispatcher = Dispatcher()
    dispatcher.effect("Call", LocalEffect(hang))
    limits = Limits()
    limited = stream("calls", "Call", deadline=timedelta(days=1), retry=calls(attempts=3).retry)

    async def is_sent() -> bool:
        return bool(sent)

    async with open_bus(dsn, limited) as bus, at_work(bus, dispatcher, timeout=limits):
        envelope = call("a")
        await bus.publish(envelope)
        await eventually(is_sent)
        limits.let_pass()
        await reaches(bus, envelope, "DEAD", "effect_unclear")
    assert len(sent) == 1


async def test_an_effect_that_exceeds_its_deadline_at_its_last_attempt_is_logged_as_unclear(dsn: str) -> None:
    sent = asyncio.Event()

    async def hang(_attempt: Attempt) -> CallResult:
        sent.set()
        await asyncio.Event().wait()
        return Acked()

    dispatcher = Dispatcher()
    dispatcher.effect("Call", LocalEffect(hang))
    limits = Limits()
    limited = stream("calls", "Call", deadline=timedelta(days=1), retry=calls(attempts=1).retry)
    async with open_bus(dsn, limited) as bus, at_work(bus, dispatcher, timeout=limits):
        envelope = call("a")
        await bus.publish(envelope)
        await sent.wait()
        limits.let_pass()
        await reaches(bus, envelope, "DEAD", "deadline")
        logged = await rows(bus, "SELECT data FROM kingdom.log WHERE type = 'effect.unclear'")
    assert [entry["data"]["key"] for entry in logged] == [str(envelope.event_id)]


async def _has(bus: PostgresBus, **counts: int) -> bool:
    """Return whether each status has this many calls, and the waiting ones are deferred."""
    found = await rows(
        bus,
        "SELECT status, count(*) AS n FROM kingdom.outbox_all WHERE event_type <> 'Made'"
        " AND (status <> 'PENDING' OR last_error_code = 'deferred') GROUP BY status",
    )
    return {row["status"]: row["n"] for row in found} == counts


async def _called(target: HttpTarget, count: int) -> bool:
    return len(target.seen) >= count


async def _done(bus: PostgresBus, envelope: Envelope) -> bool:
    return bool((await event(bus, envelope))["status"] == "DONE")
