"""Pause and resume: no new event starts, running ones finish, and none is lost."""

from kingdom.bus import Dispatcher, Done, Envelope, Event, Retry, Transaction
from tests.contract.scene import HOUR, NO_WAIT, Scene, eventually, ids, ping, step


async def pause(scene: Scene, stream: str) -> None:
    await scene.operations.pause(stream, reason="maintenance", actor="ann")


async def test_a_paused_stream_gives_no_events(scene: Scene) -> None:
    await scene.bus.publish(ping(), step())
    await pause(scene, "free")
    await pause(scene, "line")
    async with scene.second() as second:
        for bus in (scene.bus, second):
            assert await scene.claim("free", bus=bus) == []
            assert await scene.claim("line", bus=bus) == []


async def test_other_streams_are_not_paused(scene: Scene) -> None:
    await scene.bus.publish(ping(), step())
    await pause(scene, "free")
    assert len(await scene.claim("line")) == 1


async def test_events_in_flight_at_a_pause_can_be_settled_and_renewed(scene: Scene) -> None:
    await scene.bus.publish(step(), step(number=1))
    first, second = await scene.claim("line")
    await pause(scene, "line")
    assert scene.bus.renew({first.token: NO_WAIT}).alive == {first.token}
    await scene.settle(Done(), first)
    await scene.settle(Retry(NO_WAIT), second)
    assert await scene.claim("line") == []


async def test_events_published_during_a_pause_are_delivered_after_it(scene: Scene) -> None:
    await pause(scene, "free")
    event = ping()
    await scene.bus.publish(event)
    assert await scene.claim("free") == []
    assert await scene.operations.resume("free", actor="ann")
    assert ids(await scene.claim("free")) == [event.event_id]


async def test_an_event_whose_lease_was_lost_during_a_pause_is_delivered_after_it(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await pause(scene, "free")
    assert await scene.lose(delivery) == 1
    assert await scene.claim("free") == []
    await scene.operations.resume("free", actor="ann")
    assert (await scene.claim_one("free")).position == delivery.position


async def test_a_stream_that_is_not_paused_cannot_be_resumed(scene: Scene) -> None:
    assert not await scene.operations.resume("free", actor="ann")
    assert await scene.log_types() == []


async def test_a_second_pause_gives_the_newer_reason_and_one_resume_ends_both(scene: Scene) -> None:
    await pause(scene, "free")
    await scene.operations.pause("free", reason="second thoughts", actor="bob")
    assert {stats.paused for stats in await scene.operations.stats()} == {"second thoughts", None}
    assert await scene.operations.resume("free", actor="ann")
    await scene.bus.publish(ping())
    assert len(await scene.claim("free")) == 1


async def test_resuming_one_stream_leaves_the_others_paused(scene: Scene) -> None:
    await scene.bus.publish(ping(), step())
    await pause(scene, "free")
    await pause(scene, "line")
    assert await scene.operations.resume("free", actor="ann")
    assert len(await scene.claim("free")) == 1
    assert await scene.claim("line") == []


async def test_an_event_that_waits_for_its_retry_is_not_counted_as_in_flight(scene: Scene) -> None:
    await scene.bus.publish(ping(), ping())
    first, _ = await scene.claim("free")
    await scene.settle(Retry(HOUR), first)
    (free,) = [each for each in await scene.operations.stats() if each.stream == "free"]
    # A bystander is in flight too.
    assert (free.pending, free.processing) == (1, 1 + 1)


async def test_pause_and_resume_are_written_to_the_log(scene: Scene) -> None:
    await pause(scene, "free")
    await scene.operations.resume("free", actor="bob")
    entries = [logged.entry for logged in await scene.read_log()]
    assert [(entry.type, entry.actor) for entry in entries] == [("stream.paused", "ann"), ("stream.resumed", "bob")]
    assert entries[0].data == {"stream": "free", "reason": "maintenance"}


async def test_a_running_worker_stops_claiming_during_a_pause_and_continues_after_it(scene: Scene) -> None:
    dispatcher, handled = Dispatcher(), list[int]()

    @dispatcher.reaction("Ping")
    async def handle(event: Event[dict[str, int]], _transaction: Transaction) -> None:
        handled.append(event.payload["number"])

    async with scene.working(dispatcher, "free", "other"):
        await scene.bus.publish(ping(1))
        await eventually(lambda: handled == [1], "the first is handled")
        await pause(scene, "free")
        await scene.bus.publish(ping(2))
        # Events of the other stream show that the worker has polled since.
        await scene.bus.publish(Envelope(type="Ping", stream="other", payload={"number": 3}))
        await eventually(lambda: handled[1:], "the other stream goes on")
        await scene.bus.publish(Envelope(type="Ping", stream="other", payload={"number": 4}))
        await eventually(lambda: handled[2:], "the other stream goes on")
        assert handled == [1, 3, 4]
        await scene.operations.resume("free", actor="ann")
        await eventually(lambda: handled == [1, 3, 4, 2], "the second is handled")


async def test_the_state_of_every_stream_is_counted(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(4)), step())
    await scene.kill_next("free")
    await scene.claim_one("free")
    await pause(scene, "line")
    stats = {stats.stream: stats for stats in await scene.operations.stats()}
    free, line = stats["free"], stats["line"]
    # In each stream one bystander is in flight. In the stream `line`, another one waits behind it.
    assert (free.pending, free.processing, free.dead, free.paused) == (2, 1 + 1, 1, None)
    assert (line.pending, line.processing, line.dead, line.paused) == (1 + 1, 0 + 1, 0, "maintenance")
    assert free.oldest_pending_seconds >= 0
