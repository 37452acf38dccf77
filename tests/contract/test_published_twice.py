"""An event with a given id is delivered once, even if it is published again after it has finished."""

import asyncio
from uuid import uuid4

import msgspec
import pytest

from kingdom.bus import Dead, Done, Envelope, Retry
from kingdom.bus.payload import EventType
from tests.contract.scene import NO_WAIT, Make, Scene, ids, ping, skip, step

COPIED = 1200
ROUNDS = 25
BOTH_STREAMS = [("free", ping), ("line", step)]


@pytest.fixture(autouse=True)
def _skip_without_archived_ids(scene: Scene) -> None:
    if not scene.backend.knows_ended_ids:
        pytest.skip(f"backend {scene.backend.name} does not look for an id among ended events")


def given(envelope: Envelope) -> Envelope:
    """Return the event under a random id that its publisher chose."""
    return msgspec.structs.replace(envelope, event_id=uuid4())


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_an_id_that_was_handled_is_a_duplicate(scene: Scene, stream: str, make: Make) -> None:
    event = given(make())
    assert await scene.bus.publish(event) == ()
    assert ids(await scene.drain(stream)) == [event.event_id]
    (copy,) = await scene.bus.publish(event)
    assert (copy.stream.name, copy.envelope) == (stream, event)
    assert await scene.claim(stream) == []
    # It leaves nothing that would block a later event of its key.
    assert await scene.bus.publish(later := given(make())) == ()
    assert ids(await scene.drain(stream)) == [later.event_id]


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_a_generated_id_is_not_compared_with_ended_events(scene: Scene, stream: str, make: Make) -> None:
    event = make()
    await scene.bus.publish(event)
    await scene.drain(stream)
    assert await scene.bus.publish(event) == ()
    assert ids(await scene.drain(stream)) == [event.event_id]


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("ended", [0, 1, 2])
async def test_only_ended_events_are_left_out_of_a_batch(scene: Scene, stream: str, make: Make, ended: int) -> None:
    events = [given(make(number=number)) for number in range(3)]
    await scene.bus.publish(events[ended])
    await scene.drain(stream)
    duplicates = await scene.bus.publish(*events)
    assert [copy.envelope for copy in duplicates] == [events[ended]]
    left = [event for event in events if event is not events[ended]]
    assert ids(await scene.drain(stream)) == ids(left)


async def test_each_stream_recognizes_its_own_copy_as_a_duplicate(scene: Scene) -> None:
    event = given(Envelope(type="Both", partition_key="k"))
    await scene.bus.publish(event)
    for stream in ("free", "line"):
        await scene.drain(stream)
    duplicates = await scene.bus.publish(event)
    assert sorted(copy.stream.name for copy in duplicates) == ["free", "line", "other"]
    assert ids(await scene.drain("other")) == [event.event_id]


async def test_an_id_that_has_ended_in_one_stream_is_new_to_another(scene: Scene) -> None:
    event = given(Envelope(type="Both", partition_key="k", stream="free"))
    await scene.bus.publish(event)
    await scene.drain("free")
    duplicates = await scene.bus.publish(msgspec.structs.replace(event, stream=None))
    assert [copy.stream.name for copy in duplicates] == ["free"]
    for stream in ("line", "other"):
        assert ids(await scene.drain(stream)) == [event.event_id]


async def test_an_event_that_is_open_dead_or_discarded_is_a_duplicate_too(scene: Scene) -> None:
    waiting, dead, discarded = given(ping()), given(skip()), given(skip())
    await scene.bus.publish(waiting, dead, discarded)
    await scene.settle(Retry(NO_WAIT), await scene.claim_one("free"))
    await scene.settle(Dead("broken"), await scene.claim_one("skipping"))
    await scene.discard(await scene.kill_next("skipping"))
    duplicates = await scene.bus.publish(waiting, dead, discarded)
    assert sorted(copy.envelope.event_id for copy in duplicates) == sorted(ids([waiting, dead, discarded]))
    assert await scene.claim("skipping") == []


async def test_ended_events_in_a_large_batch_are_duplicates(scene: Scene) -> None:
    events = [given(ping(number)) for number in range(COPIED)]
    await scene.bus.publish(*events[:3])
    await scene.drain("free")
    duplicates = await scene.bus.publish(*events)
    assert sorted(ids([copy.envelope for copy in duplicates])) == sorted(ids(events[:3]))
    assert len(scene.picture.rows) == COPIED - 3


async def test_an_ended_event_that_is_published_together_with_a_settlement_is_a_duplicate(scene: Scene) -> None:
    known = given(step())
    await scene.bus.publish(known)
    await scene.drain("line")
    await scene.bus.publish(step(number=1))
    running = await scene.claim_one("line")
    async with scene.bus.transaction(hold=[running]) as transaction:
        await transaction.publish(known, following := given(step(number=2)))
        await transaction.settle(running, Done())
    assert [copy.envelope for copy in transaction.duplicates] == [known]
    assert ids(await scene.drain("line")) == [following.event_id]


async def test_an_id_that_is_passed_to_an_event_type_counts_as_given(scene: Scene) -> None:
    number = EventType(name="Ping", payload=dict[str, int])
    event = number.envelope({"number": 1}, event_id=uuid4())
    assert event.event_id_given
    assert not number.envelope({"number": 1}).event_id_given
    assert Envelope.from_wire(event.to_wire()).event_id_given
    await scene.bus.publish(event)
    await scene.drain("free")
    assert len(await scene.bus.publish(event)) == 1


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_publishing_again_while_the_first_is_settled_delivers_it_once(
    scene: Scene, stream: str, make: Make
) -> None:
    async with scene.second() as other:
        for number in range(ROUNDS):
            event = given(make(number=number))
            await scene.bus.publish(event)
            delivery = await scene.claim_one(stream)
            barrier = asyncio.Barrier(2)

            async def again(event: Envelope = event, barrier: asyncio.Barrier = barrier) -> int:
                await barrier.wait()
                return len(await other.publish(event))

            publishing = asyncio.create_task(again())
            async with scene.bus.transaction(hold=[delivery]) as transaction:
                await transaction.settle(delivery, Done())
                if number % 2:
                    await barrier.wait()
            if not number % 2:
                await barrier.wait()
            assert await publishing == 1
            assert await scene.claim(stream) == []
            assert scene.picture.ended[event.event_id] == [stream]


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_a_second_publish_during_the_settlement_waits_for_its_end(scene: Scene, stream: str, make: Make) -> None:
    for outcome in ("commit", "rollback"):
        event = given(make())
        await scene.bus.publish(event)
        delivery = await scene.claim_one(stream)
        async with scene.backend.caller(scene.bus) as caller:
            async with caller.join() as transaction:
                await transaction.settle(delivery, Done())
            publishing = asyncio.create_task(scene.bus.publish(event))
            await scene.until_waiting(1)
            await getattr(caller, outcome)()
        assert len(await publishing) == 1
        await scene.lose_all()
        assert len(await scene.drain(stream)) == (outcome == "rollback")
