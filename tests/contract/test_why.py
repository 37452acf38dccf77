"""The answer of `why` in each situation of an event: waiting, running, dead, done or discarded."""

from datetime import datetime

import pytest

from kingdom.bus import Dead, Defer, Dispatcher, Done, Envelope, Retry
from kingdom.clock import utc_now
from tests.contract.scene import ATTEMPTS, HOUR, NO_WAIT, Make, Scene, eventually, ping, skip, step


def shown(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


async def test_why_an_event_waits_for_a_worker(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    due_at = (await scene.situation(event)).due_at
    assert (
        await scene.why(event) == f"It has been due since {shown(due_at)} and waits for a free worker of stream free."
    )


@pytest.mark.parametrize("make", [ping, step])
async def test_why_an_event_of_a_paused_stream_waits(scene: Scene, make: Make) -> None:
    event = make()
    await scene.bus.publish(event)
    stream = (await scene.situation(event)).stream
    await scene.operations.pause(stream, reason="database upgrade", actor="ann")
    since = (await scene.situation(event)).paused_since
    assert await scene.why(event) == (
        f"Stream {stream} has been paused by ann since {shown(since)}: database upgrade. "
        f"Resume it: kingdom bus resume {stream}"
    )


async def test_why_an_event_is_not_due_yet(scene: Scene) -> None:
    event, at = ping(), utc_now() + HOUR
    await scene.bus.publish(event, at=at)
    assert await scene.why(event) == f"It is not due before {shown(at)}."


async def test_a_delayed_follower_that_became_the_head_is_not_due_yet(scene: Scene) -> None:
    event, at = step(number=1), utc_now() + HOUR
    await scene.bus.publish(step())
    await scene.bus.publish(event, at=at)
    assert "comes first" in await scene.why(event)
    await scene.drain("line")
    assert await scene.why(event) == f"It is not due before {shown(at)}."


async def test_why_a_deferred_event_waits(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery, until = await scene.claim_one("free"), utc_now() + HOUR
    await scene.settle(Defer(until, "no slot is free"), delivery)
    assert await scene.why(delivery) == f"It is deferred until {shown(until)}. Reason: no slot is free."


async def test_why_an_event_without_a_handler_waits(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    async with scene.working(Dispatcher(), "free"):

        async def deferred() -> bool:
            return (await scene.situation(event)).error_code == "deferred"

        await eventually(deferred, "a worker without a handler defers it")
    assert "Reason: no handler for Ping in this process." in await scene.why(event)
    assert (await scene.situation(event)).attempt == 0


async def test_why_a_failed_event_is_tried_again(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.settle(Retry(HOUR, "timeout", "no answer"), delivery)
    due_at = (await scene.situation(delivery)).due_at
    assert await scene.why(delivery) == (
        f"It will be tried again at {shown(due_at)}, after 1 attempt of {ATTEMPTS}; last error: timeout (no answer)."
    )


async def test_why_an_event_behind_a_dead_event_waits(scene: Scene) -> None:
    event = step(number=1)
    await scene.bus.publish(step(), event)
    blocker = (await scene.kill_next("line")).envelope.event_id
    assert await scene.why(event) == (
        f"Its key 'k' is blocked by the dead event {blocker}."
        f" Redrive or discard that one: kingdom bus dead show {blocker}"
    )


async def test_why_an_event_behind_a_pending_event_waits(scene: Scene) -> None:
    head, event = step(), step(number=1)
    await scene.bus.publish(head, event)
    assert await scene.why(event) == f"Its key 'k' is busy: event {head.event_id} (PENDING) comes first."


async def test_why_an_event_behind_a_running_event_waits(scene: Scene) -> None:
    head, event = step(), step(number=1)
    await scene.bus.publish(head, event)
    await scene.claim_one("line")
    assert await scene.why(event) == f"Its key 'k' is busy: event {head.event_id} (PROCESSING) comes first."


async def test_why_a_redriven_event_and_later_events_wait_for_the_running_event(scene: Scene) -> None:
    events = [skip(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    dead = await scene.kill_next("skipping")
    await scene.claim_one("skipping")
    await scene.redrive(dead)
    expected = f"Its key 'k' is busy: event {events[1].event_id} (PROCESSING) comes first."
    assert await scene.why(events[0]) == expected
    assert await scene.why(events[2]) == expected


@pytest.mark.parametrize("make", [ping, step])
async def test_why_an_event_is_running(scene: Scene, make: Make) -> None:
    event = make()
    await scene.bus.publish(event)
    await scene.claim((await scene.situation(event)).stream, by="host-a-17")
    until = (await scene.situation(event)).lease_until
    assert until is not None
    assert until > utc_now()
    assert await scene.why(event) == f"It is running: leased by host-a-17 until {shown(until)}, 1 attempt so far."


async def test_why_a_running_event_with_a_requested_cancellation_still_runs(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    asked, neighbor = await scene.claim("free", by="host-a-17")
    await scene.cancel(asked)
    words = await scene.why(asked)
    assert words.startswith("It is running: leased by host-a-17 until ")
    assert words.endswith(
        " 1 attempt so far. Its cancellation was requested; the worker sees that at its next renewal."
    )
    assert "cancellation" not in await scene.why(neighbor)


async def test_why_an_event_with_an_expired_lease_waits(scene: Scene) -> None:
    await scene.bus.publish(ping())
    (delivery,) = await scene.claim("free", by="host-a-17")
    scene.backend.expire([delivery.token])
    until = (await scene.situation(delivery)).lease_until
    assert await scene.why(delivery) == (
        f"It was leased by host-a-17; the lease expired at {shown(until)}, and a reaper returns it soon."
    )


async def test_why_an_event_that_may_have_crashed_a_worker_is_suspect(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.lose(delivery)
    words = await scene.why(delivery)
    assert " waits for a free worker of stream free." in words
    assert words.endswith(" It runs alone, because a worker died or stalled while holding it.")


async def test_why_an_event_is_quarantined(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    for _ in range(4):
        await scene.lose(await scene.claim_one("free"))
    assert await scene.why(event) == (
        "It is quarantined, because its worker died or stalled too often: the next claim ends it as dead."
    )


async def test_a_dead_event_waits_for_no_other_event_of_its_key(scene: Scene) -> None:
    await scene.bus.publish(*(skip(number=number) for number in range(2)))
    dead = await scene.kill_next("skipping")
    assert (await scene.situation(dead)).ahead_event_id is None


async def test_why_an_event_is_dead(scene: Scene) -> None:
    await scene.bus.publish(ping())
    await scene.settle(Retry(NO_WAIT), await scene.claim_one("free"))
    delivery = await scene.claim_one("free")
    await scene.settle(Dead("no such account", "rejected"), delivery)
    died_at = (await scene.situation(delivery)).processed_at
    event_id = delivery.envelope.event_id
    assert await scene.why(delivery) == (
        f"It has been dead since {shown(died_at)}, after 2 attempts, because of rejected (no such account)."
        f" Redrive it: kingdom bus redrive {event_id}"
    )


async def test_why_an_event_is_cancelled(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    await scene.cancel(event)
    assert "after 0 attempts, because of cancelled (cancelled by tester)." in await scene.why(event)


async def test_why_an_event_is_done(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.settle(Done(), delivery)
    done_at = (await scene.situation(delivery)).processed_at
    assert await scene.why(delivery) == f"It has been done since {shown(done_at)}, after 1 attempt."


async def test_why_an_event_is_discarded(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.kill_next("free")
    await scene.discard(delivery)
    ended_at = (await scene.situation(delivery)).processed_at
    assert await scene.why(delivery) == (f"It was discarded at {shown(ended_at)}; its last error was broken (broken).")


async def test_every_copy_of_an_event_has_its_own_situation(scene: Scene) -> None:
    event = Envelope(type="Both", partition_key="k")
    await scene.bus.publish(event)
    await scene.settle(Done(), await scene.claim_one("free"))
    await scene.kill_next("line")
    situations = await scene.operations.situations(event.event_id)
    assert {s.stream: s.status for s in situations} == {"free": "DONE", "line": "DEAD", "other": "PENDING"}


async def test_an_unknown_event_has_no_situation(scene: Scene) -> None:
    assert await scene.operations.situations(ping().event_id) == []
