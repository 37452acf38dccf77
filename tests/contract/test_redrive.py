"""Redrive, discard and cancel in ordered streams keep the order, whatever the state of the key's first event is."""

import pytest

from kingdom.bus import Dead, Delivery, Done, Envelope, Retry
from kingdom.bus.outcome import Release
from kingdom.clock import utc_now
from tests.contract.scene import HOUR, NO_WAIT, Make, Scene, ids, skip, step


async def line_of(scene: Scene, count: int) -> list[Envelope]:
    events = [skip(number=number) for number in range(count)]
    await scene.bus.publish(*events)
    return events


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [delivery.envelope.payload["number"] for delivery in deliveries]


async def test_an_event_redriven_while_its_head_is_pending_goes_first(scene: Scene) -> None:
    await line_of(scene, 3)
    dead = await scene.kill_next("skipping")
    await scene.redrive(dead)
    assert numbers(await scene.drain("skipping")) == [0, 1, 2]


async def test_an_event_redriven_after_its_key_was_removed_is_the_head_again(scene: Scene) -> None:
    await line_of(scene, 1)
    dead = await scene.kill_next("skipping")
    await scene.redrive(dead)
    (again,) = await scene.drain("skipping")
    assert (again.position, again.attempt) == (dead.position, 1)
    assert scene.picture.keys == {}


async def test_an_event_redriven_while_its_head_is_in_flight_comes_right_after_it(scene: Scene) -> None:
    await line_of(scene, 4)
    dead = await scene.kill_next("skipping")
    flying = await scene.claim_one("skipping")
    await scene.redrive(dead)
    scene.check()
    assert await scene.claim("skipping") == []
    await scene.settle(Done(), flying)
    assert numbers(await scene.drain("skipping")) == [0, 2, 3]


async def test_an_event_redriven_while_a_run_is_in_flight_comes_right_after_the_run(scene: Scene) -> None:
    await line_of(scene, 4)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping")
    assert numbers(run) == [1, 2, 3]
    await scene.redrive(dead)
    for delivery in run:
        scene.check()
        assert await scene.claim("skipping") == []
        await scene.settle(Done(), delivery)
    assert numbers(await scene.drain("skipping")) == [0]


async def test_an_event_redriven_while_a_run_is_half_settled_waits_for_the_rest_of_the_run(scene: Scene) -> None:
    await line_of(scene, 4)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping")
    await scene.settle(Done(), run[0])
    await scene.redrive(dead)
    scene.check()
    assert await scene.claim("skipping") == []
    await scene.settle(Done(), *run[1:])
    assert numbers(await scene.drain("skipping")) == [0]


@pytest.mark.parametrize("together", [True, False])
async def test_an_event_redriven_in_the_middle_of_a_run_is_neither_lost_nor_run_concurrently(
    scene: Scene,
    together: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    events = await line_of(scene, 4)
    assert await scene.cancel(events[1]) == "cancelled"
    cancelled = scene.picture.of(events[1].event_id)
    run = await scene.claim("skipping")
    assert numbers(run) == [0, 2, 3]
    await scene.operations.redrive([cancelled.position], actor="tester")
    scene.check()
    for batch in [run] if together else [[delivery] for delivery in run]:
        assert await scene.claim("skipping") == []
        await scene.settle(Done(), *batch)
        scene.check()
    assert numbers(await scene.drain("skipping")) == [1]


async def test_an_event_redriven_in_the_middle_of_a_run_that_is_retried_has_its_old_position(scene: Scene) -> None:
    events = await line_of(scene, 4)
    await scene.cancel(events[1])
    run = await scene.claim("skipping")
    await scene.operations.redrive([scene.picture.of(events[1].event_id).position], actor="tester")
    await scene.settle(Retry(NO_WAIT), run[0])
    again = await scene.claim("skipping")
    assert numbers(again) == [0, 1, 2, 3]
    await scene.settle(Done(), *again)
    assert scene.picture.rows == []


async def test_an_event_redriven_after_the_head_has_its_old_position(scene: Scene) -> None:
    events = await line_of(scene, 4)
    await scene.cancel(events[2])
    await scene.operations.redrive([scene.picture.of(events[2].event_id).position], actor="tester")
    assert numbers(await scene.drain("skipping", size=1)) == [0, 1, 2, 3]


async def test_an_event_redriven_and_cancelled_again_after_a_run_blocks_nothing(scene: Scene) -> None:
    events = await line_of(scene, 5)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping", 3)
    await scene.redrive(dead)
    assert await scene.cancel(events[0]) == "cancelled"
    await scene.settle(Done(), *run)
    assert numbers(await scene.drain("skipping")) == [4]


async def test_an_event_redriven_while_its_head_waits_for_a_retry_goes_first(scene: Scene) -> None:
    await line_of(scene, 3)
    dead = await scene.kill_next("skipping")
    await scene.settle(Retry(HOUR), await scene.claim_one("skipping"))
    await scene.redrive(dead)
    (first,) = await scene.claim("skipping", 1)
    assert first.position == dead.position
    await scene.settle(Done(), first)
    scene.check()


async def test_an_event_redriven_while_its_run_is_lost_is_neither_lost_nor_run_concurrently(scene: Scene) -> None:
    await line_of(scene, 3)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping")
    await scene.redrive(dead)
    await scene.lose(*run)
    scene.check()
    assert sorted(numbers(await scene.drain("skipping"))) == [0, 1, 2]


async def test_an_event_redriven_while_the_other_events_of_its_key_end_is_delivered(scene: Scene) -> None:
    await line_of(scene, 3)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping")
    await scene.redrive(dead)
    async with scene.bus.transaction() as transaction:
        await transaction.settle(run[0], Done())
        await transaction.settle(run[1], Dead("broken"))
    scene.check()
    assert numbers(await scene.drain("skipping")) == [0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_several_events_redriven_after_one_in_flight_keep_their_order(
    scene: Scene, order: tuple[int, int]
) -> None:
    await line_of(scene, 4)
    dead = [await scene.kill_next("skipping"), await scene.kill_next("skipping")]
    flying = await scene.claim_one("skipping")
    for index in order:
        await scene.redrive(dead[index])
    await scene.settle(Done(), flying)
    assert numbers(await scene.drain("skipping", size=1)) == [0, 1, 3]


async def test_a_redrive_of_old_events_does_not_reorder_newer_ones(scene: Scene) -> None:
    events = await line_of(scene, 5)
    dead = await scene.kill_next("skipping")
    await scene.cancel(events[3])
    await scene.operations.redrive([scene.picture.of(events[3].event_id).position], actor="tester")
    await scene.redrive(dead)
    assert numbers(await scene.drain("skipping", size=1)) == [0, 1, 2, 3, 4]


async def test_a_redriven_blocker_frees_its_key(scene: Scene) -> None:
    events = [step(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    dead = await scene.kill_next("line")
    assert await scene.redrive(dead) == [dead.envelope.event_id]
    assert ids(await scene.drain("line")) == ids(events)


async def test_an_event_redriven_while_another_event_blocks_its_key_waits_for_the_blocking_event(scene: Scene) -> None:
    events = [step(number=number) for number in range(4)]
    await scene.bus.publish(*events)
    await scene.cancel(events[1])
    dead = await scene.kill_next("line")
    await scene.operations.redrive([scene.picture.of(events[1].event_id).position], actor="tester")
    assert await scene.claim("line") == []
    assert scene.picture.keys == {("line", "k"): dead.position}
    await scene.redrive(dead)
    assert ids(await scene.drain("line")) == ids(events)


async def test_a_discarded_blocker_frees_its_key(scene: Scene) -> None:
    events = [step(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    dead = await scene.kill_next("line")
    assert await scene.discard(dead) == [dead.envelope.event_id]
    assert ids(await scene.drain("line")) == ids(events[1:])


async def test_discarding_the_only_event_of_a_blocked_key_removes_the_key(scene: Scene) -> None:
    await scene.bus.publish(step())
    await scene.discard(await scene.kill_next("line"))
    assert scene.picture.keys == {}
    await scene.bus.publish(step(number=1))
    assert len(await scene.claim("line")) == 1


async def test_discarding_an_event_that_blocks_nothing_makes_no_other_event_due(scene: Scene) -> None:
    await line_of(scene, 3)
    dead = await scene.kill_next("skipping")
    flying = await scene.claim_one("skipping")
    await scene.discard(dead)
    assert await scene.claim("skipping") == []
    await scene.settle(Done(), flying)
    assert numbers(await scene.drain("skipping")) == [2]


@pytest.mark.parametrize(("stream", "make"), [("line", step), ("skipping", skip)])
async def test_a_cancelled_head_blocks_or_frees_its_key_like_any_dead_head(
    scene: Scene,
    stream: str,
    make: Make,
) -> None:
    events = [make(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    assert await scene.cancel(events[0]) == "cancelled"
    situation = await scene.situation(events[0])
    assert (situation.status, situation.error_code) == ("DEAD", "cancelled")
    assert ids(await scene.drain(stream)) == ([] if stream == "line" else ids(events[1:]))
    if stream == "line":
        await scene.operations.redrive([scene.picture.of(events[0].event_id).position], actor="tester")
        assert ids(await scene.drain(stream)) == ids(events)


@pytest.mark.parametrize(("stream", "make"), [("line", step), ("skipping", skip)])
async def test_a_cancelled_event_behind_the_head_blocks_no_other_event_of_its_key(
    scene: Scene,
    stream: str,
    make: Make,
) -> None:
    events = [make(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    assert await scene.cancel(events[1]) == "cancelled"
    assert ids(await scene.drain(stream)) == ids([events[0], events[2]])


async def test_a_redriven_event_that_is_delayed_still_waits_for_its_time(scene: Scene) -> None:
    late = step()
    await scene.bus.publish(late, at=utc_now() + HOUR)
    await scene.cancel(late)
    await scene.operations.redrive([scene.picture.of(late.event_id).position], actor="tester")
    assert await scene.claim("line") == []
    assert await scene.status(late) == "PENDING"


async def test_many_events_redriven_at_once_are_delivered_in_their_order(scene: Scene) -> None:
    await line_of(scene, 20)
    dead = [await scene.kill_next("skipping") for _ in range(10)]
    flying = await scene.claim_one("skipping")
    assert len(await scene.redrive(*dead)) == 10
    await scene.settle(Done(), flying)
    assert numbers(await scene.drain("skipping", size=3)) == [*range(10), *range(11, 20)]


async def test_an_event_redriven_after_a_run_whose_rest_was_released_comes_before_that_rest(scene: Scene) -> None:
    await line_of(scene, 4)
    dead = await scene.kill_next("skipping")
    run = await scene.claim("skipping")
    await scene.redrive(dead)
    await scene.settle(Release(), *run[1:])
    await scene.settle(Done(), run[0])
    assert numbers(await scene.drain("skipping")) == [0, 2, 3]
