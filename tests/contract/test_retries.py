"""How each outcome changes an event, and how a poison event is quarantined without the events around it."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kingdom.bus import Dead, Defer, Delivery, Dispatcher, Done, Event, Retry, Transaction, Worker
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.outcome import Release
from kingdom.clock import utc_now
from kingdom.errors import Permanent
from kingdom.log_output import configure_logs
from tests.contract.outside import Payment, be_cancelled
from tests.contract.scene import ATTEMPTS, HOUR, NO_WAIT, Make, Scene, eventually, ping, step

BOTH_STREAMS = [("free", ping), ("line", step)]


async def test_a_retry_counts_an_attempt_and_waits(scene: Scene) -> None:
    await scene.bus.publish(ping())
    first = await scene.claim_one("free")
    await scene.settle(Retry(NO_WAIT), first)
    second = await scene.claim_one("free")
    await scene.settle(Retry(HOUR, "busy", "try later"), second)
    assert (first.attempt, second.attempt) == (1, 2)
    assert await scene.claim("free") == []
    situation = await scene.situation(second)
    assert (situation.status, situation.error_code, situation.error_message) == ("PENDING", "busy", "try later")
    assert situation.due_at is not None
    assert situation.due_at > utc_now() + HOUR / 2


async def test_a_retry_without_a_wait_follows_the_policy_of_its_stream(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.settle(Retry(), delivery)
    (again,) = await eventually(lambda: scene.claim("free"), "the event is due again")
    assert again.attempt == 2


async def test_an_event_ends_dead_after_its_last_attempt(scene: Scene) -> None:
    await scene.bus.publish(ping())
    for attempt in range(1, ATTEMPTS + 1):
        delivery = await scene.claim_one("free")
        assert delivery.attempt == attempt
        await scene.settle(Retry(NO_WAIT, "broken", "it broke"), delivery)
    assert await scene.claim("free") == []
    (letter,) = await scene.dead()
    assert (letter.error_code, letter.error_message, letter.attempt) == ("broken", "it broke", ATTEMPTS)


async def test_the_last_attempt_is_counted_and_logged_as_dead(scene: Scene) -> None:
    dispatcher, registry = Dispatcher(), CollectorRegistry()

    @dispatcher.reaction("Ping")
    async def handle(_event: Event[Any], _transaction: Transaction) -> Retry:
        return Retry(NO_WAIT, "broken", "it broke")

    def counted(result: str) -> float | None:
        return registry.get_sample_value("kingdom_outbox_processed_total", {"stream": "free", "result": result})

    async def has_ended() -> bool:
        return counted("dead") is not None or counted("retry") == ATTEMPTS

    await scene.bus.publish(ping())
    worker = Worker(scene.bus, dispatcher, ["free"], metrics=WorkerMetrics(registry), poll=timedelta(milliseconds=20))
    configure_logs(json=True, level=logging.INFO)
    with capture_logs() as logs:
        running = asyncio.create_task(worker.run())
        await eventually(has_ended, "the event has ended")
        worker.stop()
        await running
    assert (counted("retry"), counted("dead")) == (ATTEMPTS - 1, 1)
    logged = [line["outcome"] for line in logs if line["event"] == "not done"]
    assert logged == [*["retry"] * (ATTEMPTS - 1), "dead"]


async def test_a_deferred_attempt_does_not_count(scene: Scene) -> None:
    await scene.bus.publish(ping())
    for _ in range(2 * ATTEMPTS):
        delivery = await scene.claim_one("free")
        assert delivery.attempt == 1
        await scene.settle(Defer(utc_now(), "no slot"), delivery)
    await scene.settle(Defer.by(HOUR, "no slot"), await scene.claim_one("free"))
    assert await scene.claim("free") == []
    assert scene.picture.rows[0].attempt == 0


async def test_a_wait_counts_from_the_settlement_by_the_clock_of_the_store(scene: Scene) -> None:
    late = Defer.by(HOUR, "no slot")
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    before = (await scene.situation(delivery)).now
    await scene.settle(late, delivery)
    situation = await scene.situation(delivery)
    assert situation.due_at is not None
    assert before + HOUR <= situation.due_at <= situation.now + HOUR


async def test_a_released_attempt_does_not_count(scene: Scene) -> None:
    await scene.bus.publish(ping())
    for _ in range(2 * ATTEMPTS):
        delivery = await scene.claim_one("free")
        assert delivery.attempt == 1
        await scene.settle(Release(), delivery)


async def test_a_dead_event_stays_until_a_person_acts(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.kill_next("free")
    assert await scene.claim("free") == []
    assert await scene.lose(delivery) == 0
    assert await scene.status(delivery) == "DEAD"


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_an_event_lost_with_others_is_claimed_alone_afterwards(
    scene: Scene,
    stream: str,
    make: Make,
) -> None:
    await scene.bus.publish(*(make() for _ in range(3)))
    together = await scene.claim(stream)
    assert len(together) == 3
    await scene.lose(*together)
    for position in [delivery.position for delivery in together]:
        (alone,) = await scene.claim(stream)
        assert alone.position == position
        assert alone.suspect
        assert alone.lost_alone == 0
        await scene.settle(Done(), alone)


async def test_a_suspect_does_not_wait_for_healthy_events_and_runs_alone(scene: Scene) -> None:
    await scene.bus.publish(ping(1))
    suspect = await scene.claim_one("free")
    await scene.bus.publish(ping(2), ping(3))
    await scene.lose(suspect)
    healthy = await scene.claim("free")
    assert not [delivery for delivery in healthy if delivery.suspect]
    (alone,) = await scene.claim("free")
    assert alone.position == suspect.position


@pytest.mark.parametrize("outcome", [Retry(NO_WAIT), Defer.by(NO_WAIT, "again")])
async def test_an_event_is_no_longer_suspect_after_its_handler_has_ended(scene: Scene, outcome: Retry | Defer) -> None:
    await scene.bus.publish(ping(1), ping(2))
    await scene.lose(*await scene.claim("free"))
    suspect = await scene.claim_one("free")
    assert suspect.suspect
    await scene.settle(outcome, suspect)
    (row,) = [row for row in scene.picture.rows if row.position == suspect.position]
    assert row.crash_count == 0


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("neighbors", [0, 2])
async def test_an_event_that_kills_its_worker_ends_dead_and_its_neighbors_do_not(
    scene: Scene,
    stream: str,
    make: Make,
    neighbors: int,
) -> None:
    poison = make()
    await scene.bus.publish(poison, *(make() for _ in range(neighbors)))
    lost = await _lose_leases_with(scene, stream, poison.event_id)
    # The first loss only makes it a suspect. After that, it takes three leases lost alone.
    assert [len(claim) for claim in lost] == [1 + neighbors, 1, 1, 1]
    assert await scene.status(poison) == "PENDING"
    ran: list[object] = []
    await _work_until_settled(scene, stream, ran)
    assert poison.event_id not in ran
    assert len(ran) == (0 if stream == "line" else neighbors)
    situation = await scene.situation(poison)
    assert (situation.status, situation.error_code) == ("DEAD", "quarantined")
    assert [letter.event_id for letter in await scene.dead()] == [poison.event_id]


async def test_events_that_lose_leases_only_together_are_not_quarantined(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(3)))
    for _ in range(ATTEMPTS - 1):
        together = await scene.claim("free")
        assert len(together) == 3
        await scene.lose(*together)
        for _ in range(3):
            # Its handler succeeds once, so it may share a lease again.
            await scene.settle(Defer.by(NO_WAIT, "fine"), await scene.claim_one("free"))
    assert [delivery.outcome_without_running() for delivery in await scene.claim("free")] == [None] * 3


async def test_an_event_claimed_too_often_without_an_outcome_ends_dead(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    for loss in range(ATTEMPTS):
        if loss in (2, 4):
            # A recorded attempt, so that the lost leases alone do not quarantine it.
            await scene.settle(Defer.by(NO_WAIT, "alive"), await scene.claim_one("free"))
        await scene.lose(await scene.claim_one("free"))
    ran: list[object] = []
    await _work_until_settled(scene, "free", ran)
    assert ran == []
    situation = await scene.situation(event)
    assert (situation.status, situation.error_code) == ("DEAD", "attempts_exhausted")


async def test_an_event_that_ends_without_its_handler_does_not_count_as_a_short_run(
    scene: Scene, tmp_path: Path
) -> None:
    event = ping()
    await scene.bus.publish(event)
    await _lose_leases_with(scene, "free", event.event_id)
    dispatcher, registry = Dispatcher(), CollectorRegistry()
    dispatcher.effect("Ping", Payment(tmp_path / "book"))
    worker = Worker(scene.bus, dispatcher, ["free"], metrics=WorkerMetrics(registry), poll=timedelta(milliseconds=20))
    running = asyncio.create_task(worker.run())
    await eventually(scene.dead, "the event is dead")
    worker.stop()
    await running
    ran = {"stream": "free", "eventType": "Ping"}
    assert registry.get_sample_value("kingdom_outbox_handler_duration_seconds_count", ran) is None


async def test_a_handler_that_raises_permanent_ends_dead_at_once(scene: Scene) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Ping")
    async def refuse(_event: Event[object], _transaction: Transaction) -> None:
        raise Permanent("not like this")

    event = ping()
    await scene.bus.publish(event)
    async with scene.working(dispatcher, "free"):
        await eventually(scene.dead, "the event is dead")
    situation = await scene.situation(event)
    assert (situation.attempt, situation.error_code) == (1, "permanent")


async def _lose_leases_with(scene: Scene, stream: str, poison: object) -> list[list[Delivery]]:
    """Lose each lease that contains the poison event, as a dying worker does. Stop before the quarantine."""
    lost: list[list[Delivery]] = []
    while True:
        claimed = await scene.claim(stream)
        held = [delivery for delivery in claimed if delivery.envelope.event_id == poison]
        if held and held[0].outcome_without_running():
            await scene.settle(Release(), *claimed)
            return lost
        if held:
            lost.append(claimed)
            await scene.lose(*claimed)
        else:
            await scene.settle(Defer.by(NO_WAIT, "not this one"), *claimed)


async def _work_until_settled(scene: Scene, stream: str, ran: list[object]) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Ping")
    @dispatcher.reaction("Step")
    async def run(event: Event[object], _transaction: Transaction) -> Dead | None:
        ran.append(event.envelope.event_id)
        return None

    async with scene.working(dispatcher, stream):
        await eventually(scene.dead, "the poison is dead")
        if stream == "free":
            await eventually(lambda: all(not row.open for row in scene.picture.rows), "the neighbors are done")


@pytest.mark.parametrize("alone", [False, True], ids=["in a group", "alone"])
async def test_an_unrequested_cancellation_fails_the_attempt_and_not_its_neighbors(
    scene: Scene, *, alone: bool
) -> None:
    dispatcher, runs = Dispatcher(), 0

    @dispatcher.reaction("Ping")
    async def handle(event: Event[dict[str, int]], transaction: Transaction) -> None:
        nonlocal runs
        if event.payload["number"] == 1:
            runs += 1
            if alone:
                # A reaction that failed after it took a key runs again alone.
                await transaction.once("test", "key", HOUR)
            await be_cancelled()

    events = [ping(number) for number in range(3)]
    await scene.bus.publish(*events)
    async with scene.working(dispatcher, "free"):
        await eventually(lambda: not any(row.open for row in scene.picture.rows), "every event has ended")
    assert [await scene.status(event) for event in events] == ["DONE", "DEAD", "DONE"]
    situation = await scene.situation(events[1])
    assert (situation.error_code, situation.attempt) == ("transient", ATTEMPTS)
    assert "CancelledError" in (situation.error_message or "")
    # In the group, and then again alone.
    assert runs == (2 * ATTEMPTS if alone else ATTEMPTS)
