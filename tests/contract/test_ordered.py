"""Ordered streams: same key, same order, one at a time; a stuck key blocks only itself."""

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import pairwise, product

import pytest

from kingdom.bus import Dead, Defer, Delivery, Dispatcher, Done, Envelope, Event, Retry, Transaction
from kingdom.bus.outcome import Release
from kingdom.clock import utc_now
from tests.contract.scene import HOUR, NO_WAIT, Scene, eventually, ids, ping, skip, step
from tests.patience import PATIENCE_SECONDS

LINE = ("line", "k")


async def publish_steps(scene: Scene, count: int, key: str = "k") -> list[Envelope]:
    events = [step(key, number) for number in range(count)]
    await scene.bus.publish(*events)
    return events


async def test_a_follower_that_is_released_when_its_head_is_done_can_be_claimed_by_another_process(
    scene: Scene,
) -> None:
    head, follower = step(), step(number=1)
    await scene.bus.publish(head, follower)
    first, second = await scene.claim("line")
    async with scene.bus.transaction() as transaction:
        await transaction.settle(first, Done())
        await transaction.settle(second, Release())
    async with scene.second() as other:
        claimed = await other.claim("line", 10, "other")
    assert [delivery.envelope.event_id for delivery in claimed] == [follower.event_id]


async def test_the_events_of_a_key_come_in_the_order_of_their_publishing(scene: Scene) -> None:
    events = [step(number=number) for number in range(12)]
    await scene.bus.publish(*events[:4])
    for event in events[4:8]:
        await scene.bus.publish(event)
    async with scene.bus.transaction() as transaction:
        for event in events[8:]:
            await transaction.publish(event)
    assert ids(await scene.drain("line", size=3)) == ids(events)


@pytest.mark.parametrize("outcome", [Done(), Retry(NO_WAIT), Release()])
async def test_a_wait_ends_at_once_after_a_settlement_that_made_an_event_due(
    scene: Scene, outcome: Done | Retry | Release
) -> None:
    await publish_steps(scene, 2)
    (head,) = await scene.claim("line", 1)
    for _ in range(3):
        # The publish and the claim have left hints.
        await scene.bus.wait({"line"}, timedelta(milliseconds=50))
    async with scene.bus.transaction() as transaction:
        await transaction.settle(head, outcome)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await scene.bus.wait({"line"}, HOUR)
    assert len(await scene.claim("line", 1)) == 1


async def test_a_claim_returns_the_next_events_of_a_key_in_order_together(scene: Scene) -> None:
    events = await publish_steps(scene, 5)
    claimed = await scene.claim("line")
    assert ids(claimed) == ids(events)
    assert {delivery.same_key for delivery in claimed} == {tuple(delivery.position for delivery in claimed)}


async def test_a_claim_takes_the_same_number_of_events_of_each_key(scene: Scene) -> None:
    for key in ("a", "b"):
        await publish_steps(scene, 16, key)
    claimed = await scene.claim("line", 16)
    assert Counter(delivery.envelope.partition_key for delivery in claimed) == {"a": 8, "b": 8}


async def test_an_event_of_a_key_in_flight_is_not_claimed(scene: Scene) -> None:
    await publish_steps(scene, 3)
    await scene.claim("line", 1)
    async with scene.second() as second:
        assert await scene.claim("line", bus=second) == []
    await publish_steps(scene, 1)
    assert await scene.claim("line") == []


async def test_a_key_in_flight_does_not_delay_the_events_of_other_keys(scene: Scene) -> None:
    await publish_steps(scene, 2, "stuck")
    await scene.claim("line", 1)
    await publish_steps(scene, 2, "free")
    delivered = await scene.drain("line")
    assert [delivery.envelope.partition_key for delivery in delivered] == ["free", "free"]


async def test_the_same_key_in_another_stream_is_another_key(scene: Scene) -> None:
    await scene.bus.publish(step("k"), skip("k"))
    assert len(await scene.claim("line")) == 1
    assert len(await scene.claim("skipping")) == 1


async def test_events_without_a_key_wait_for_no_other(scene: Scene) -> None:
    await scene.bus.publish(*(Envelope(type="Step", payload={"n": n}) for n in range(3)))
    first, second, third = [await scene.claim_one("line") for _ in range(3)]
    await scene.settle(Done(), third)
    await scene.settle(Dead("broken"), second)
    await scene.settle(Retry(NO_WAIT), first)
    assert (await scene.claim_one("line")).position == first.position


async def test_settling_a_head_makes_the_next_one_the_head(scene: Scene) -> None:
    events = await publish_steps(scene, 3)
    for event in events:
        delivery = await scene.claim_one("line")
        assert delivery.envelope.event_id == event.event_id
        assert len(scene.picture.heads(LINE)) == 1
        await scene.settle(Done(), delivery)
    assert scene.picture.keys == {}


@pytest.mark.parametrize("outcome", [Retry(HOUR), Defer.by(HOUR, "later"), Dead("broken"), Release()])
async def test_an_outcome_other_than_done_releases_the_rest_of_the_run(
    scene: Scene, outcome: Retry | Defer | Dead | Release
) -> None:
    await publish_steps(scene, 4)
    run = await scene.claim("line")
    async with scene.bus.transaction() as transaction:
        await transaction.settle(run[0], Done())
        await transaction.settle(run[1], outcome)
    rows = {row.position: row for row in scene.picture.rows}
    assert [rows[delivery.position].status for delivery in run[2:]] == ["PENDING", "PENDING"]
    assert [rows[delivery.position].attempt for delivery in run[2:]] == [0, 0]
    scene.check()


async def test_a_retrying_head_holds_its_followers_back(scene: Scene) -> None:
    events = await publish_steps(scene, 3)
    await scene.settle(Retry(HOUR), (await scene.claim("line"))[0])
    assert await scene.claim("line") == []
    assert await scene.status(events[1]) == "PENDING"


async def test_a_retried_head_comes_again_before_its_followers(scene: Scene) -> None:
    events = await publish_steps(scene, 3)
    await scene.settle(Retry(NO_WAIT), (await scene.claim("line"))[0])
    again = await scene.drain("line")
    assert ids(again) == ids(events)
    assert [delivery.attempt for delivery in again] == [2, 1, 1]


async def test_a_follow_up_of_the_last_event_of_a_key_is_delivered(scene: Scene) -> None:
    await publish_steps(scene, 1)
    delivery = await scene.claim_one("line")
    follow_up = step(number=1)
    async with scene.bus.transaction(hold=[delivery]) as transaction:
        await transaction.publish(follow_up)
        await transaction.settle(delivery, Done())
    assert ids(await scene.drain("line")) == [follow_up.event_id]


async def test_the_unsettled_events_of_a_lost_run_are_delivered_again_in_order(scene: Scene) -> None:
    events = await publish_steps(scene, 4)
    run = await scene.claim("line")
    await scene.settle(Done(), run[0])
    assert await scene.lose(*run) == 3
    assert ids(await scene.drain("line")) == ids(events[1:])


async def test_a_run_stops_before_a_suspect(scene: Scene) -> None:
    events = await publish_steps(scene, 2)
    run = await scene.claim("line")
    await scene.lose(*run)
    await publish_steps(scene, 1)
    (head,) = await scene.claim("line")
    await scene.settle(Defer.by(NO_WAIT, "survived"), head)
    (first,) = await scene.claim("line")
    assert first.envelope.event_id == events[0].event_id
    await scene.settle(Done(), first)
    (suspect,) = await scene.claim("line")
    assert suspect.suspect


async def test_a_delayed_head_holds_its_key_back_until_it_is_due(scene: Scene) -> None:
    soon = step(number=1)
    await scene.bus.publish(soon, at=utc_now() + timedelta(milliseconds=300))
    await scene.bus.publish(step("late"), at=utc_now() + HOUR)
    (follower,) = await publish_steps(scene, 1)
    await publish_steps(scene, 1, "late")
    run = await eventually(lambda: scene.claim("line"), "the head is due")
    assert ids(run) == ids([soon, follower])
    assert await scene.claim("line") == []


async def test_a_delayed_follower_is_not_delivered_early_with_its_run(scene: Scene) -> None:
    await publish_steps(scene, 2)
    late, last = step(number=2), step(number=3)
    await scene.bus.publish(late, at=utc_now() + HOUR)
    await scene.bus.publish(last)
    run = await scene.claim("line")
    assert len(run) == 2
    await scene.settle(Done(), *run)
    assert await scene.claim("line") == []
    situation = await scene.situation(late)
    assert situation.due_at is not None
    assert situation.due_at > utc_now() + HOUR / 2


async def test_a_delayed_follower_is_delivered_when_it_is_due(scene: Scene) -> None:
    (first,) = await publish_steps(scene, 1)
    late, last = step(number=1), step(number=2)
    await scene.bus.publish(late, at=utc_now() + timedelta(milliseconds=300))
    await scene.bus.publish(last)
    delivered: list[Delivery] = []

    async def all_came() -> bool:
        delivered.extend(await scene.drain("line"))
        return len(delivered) == 3

    await eventually(all_came, "the delayed event is due")
    assert ids(delivered) == ids([first, late, last])


async def test_a_dead_head_blocks_its_key_if_the_stream_blocks(scene: Scene) -> None:
    events = await publish_steps(scene, 3)
    dead = await scene.kill_next("line")
    await publish_steps(scene, 1)
    assert await scene.claim("line") == []
    assert scene.picture.keys == {LINE: dead.position}
    assert await scene.status(events[1]) == "PENDING"


async def test_a_key_blocked_by_its_only_event_holds_later_ones_back(scene: Scene) -> None:
    await publish_steps(scene, 1)
    await scene.kill_next("line")
    await publish_steps(scene, 1)
    assert await scene.claim("line") == []


async def test_a_dead_head_does_not_block_its_key_if_the_stream_skips(scene: Scene) -> None:
    events = [skip(number=number) for number in range(4)]
    await scene.bus.publish(*events)
    run = await scene.claim("skipping")
    async with scene.bus.transaction() as transaction:
        await transaction.settle(run[0], Done())
        await transaction.settle(run[1], Dead("broken"))
    assert ids(await scene.drain("skipping")) == ids(events[2:])


async def test_a_key_whose_last_event_died_is_free_if_the_stream_skips(scene: Scene) -> None:
    await scene.bus.publish(skip())
    await scene.kill_next("skipping")
    assert scene.picture.keys == {}
    await scene.bus.publish(skip(number=1))
    assert len(await scene.claim("skipping")) == 1


async def test_real_workers_keep_the_order_of_every_key_through_failures(scene: Scene) -> None:
    dispatcher, handled = Dispatcher(), list[tuple[str, int]]()
    running: set[str] = set()

    @dispatcher.reaction("Step")
    async def handle(event: Event[dict[str, int]], _transaction: Transaction) -> None:
        key = event.envelope.partition_key or ""
        assert key not in running, "two at a time"
        running.add(key)
        await asyncio.sleep(0)
        running.remove(key)
        if event.payload["number"] % 5 == 0 and event.attempt == 1:
            raise ValueError("once")
        handled.append((key, event.payload["number"]))

    keys = [f"k{number}" for number in range(6)]
    await scene.bus.publish(*(step(key, number) for number in range(20) for key in keys))
    async with (
        scene.second() as second,
        scene.working(dispatcher, "line"),
        scene.working(dispatcher, "line", bus=second),
    ):
        all_ran = set(product(keys, range(20)))
        await eventually(lambda: set(handled) == all_ran and not scene.picture.rows, "all are done")
    for key in keys:
        # A failed group runs again, so a number may come twice, but never after a higher one is settled.
        numbers = [number for name, number in handled if name == key]
        last_seen = {number: index for index, number in enumerate(numbers)}
        assert sorted(last_seen) == list(range(20))
        assert all(last_seen[a] < last_seen[b] for a, b in pairwise(range(20)))


async def test_one_transaction_can_publish_ordered_and_unordered_events(scene: Scene) -> None:
    deliveries: list[Delivery] = []
    async with scene.bus.transaction() as transaction:
        await transaction.publish(step(), ping(), skip(), *map(ping, range(1200)))
    for stream, count in (("line", 1), ("skipping", 1), ("free", 1201)):
        claimed = await scene.claim(stream, 2000)
        assert len(claimed) == count
        deliveries += claimed
    await scene.settle(Done(), *deliveries)
    assert scene.picture.rows == []
