"""Races forced by barriers, in both orders: nothing is lost, duplicated or stuck."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kingdom.bus import Dead, Delivery, Done
from kingdom.bus.outcome import AnyOutcome
from kingdom.errors import LeaseLost, NotFound
from tests.contract.scene import HOUR, Make, Scene, ids, ping, skip, step
from tests.patience import PATIENCE_SECONDS

BOTH_STREAMS = [("free", ping), ("line", step)]


@asynccontextmanager
async def settling(scene: Scene, outcome: AnyOutcome, *deliveries: Delivery) -> AsyncIterator[None]:
    """Write a settlement, and keep it uncommitted during the block."""
    async with scene.backend.caller(scene.bus) as worker:
        async with worker.join() as transaction:
            for delivery in deliveries:
                await transaction.settle(delivery, outcome)
        yield
        await worker.commit()


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
async def test_a_reaper_skips_a_lease_that_is_being_settled(
    scene: Scene,
    stream: str,
    make: Make,
) -> None:
    await scene.bus.publish(make())
    delivery = await scene.claim_one(stream)
    async with settling(scene, Done(), delivery):
        assert await scene.lose(delivery) == 0
    assert await scene.status(delivery) == "DONE"
    assert await scene.reap() == 0
    assert await scene.claim(stream) == []


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("outcome", [Done(), Dead("broken")])
async def test_a_settlement_that_meets_the_reaper_comes_too_late(
    scene: Scene,
    stream: str,
    make: Make,
    outcome: AnyOutcome,
) -> None:
    await scene.bus.publish(make())
    delivery = await scene.claim_one(stream)
    scene.backend.expire([delivery.token])
    async with scene.second() as reaper:
        with scene.backend.stalled_event(delivery.position):
            # The reaper holds the lock of the lease and waits for the event. The worker waits for the lease.
            reaping = asyncio.create_task(reaper.reap())
            await scene.until_waiting(1)
            late = asyncio.create_task(scene.settle(outcome, delivery))
            await scene.until_waiting(2)
        assert await reaping == 1
        with pytest.raises(LeaseLost):
            await late
    again = await scene.claim_one(stream)
    assert again.attempt == 2
    await scene.settle(Done(), again)


async def test_a_renewal_that_meets_the_reaper_comes_too_late(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    scene.backend.expire([delivery.token])
    async with scene.second() as reaper:
        with scene.backend.stalled_event(delivery.position):
            reaping = asyncio.create_task(reaper.reap())
            await scene.until_waiting(1)
            renewing = asyncio.create_task(asyncio.to_thread(scene.bus.renew, {delivery.token: HOUR}))
            await scene.until_waiting(2)
        assert await reaping == 1
        assert (await renewing).alive == frozenset()
    assert (await scene.claim_one("free")).attempt == 2


async def test_a_reaper_skips_a_lease_that_is_being_renewed(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    scene.backend.expire([delivery.token])
    with scene.backend.stalled_lease(delivery.token):
        renewing = asyncio.create_task(asyncio.to_thread(scene.bus.renew, {delivery.token: HOUR}))
        await scene.until_waiting(1)
        assert await scene.reap() == 0
    assert (await renewing).alive == {delivery.token}
    assert await scene.reap() == 0
    await scene.settle(Done(), delivery)


async def test_a_redrive_waits_for_the_settlement_of_the_last_event_of_its_key(scene: Scene) -> None:
    await scene.bus.publish(skip(number=0), skip(number=1))
    dead = await scene.kill_next("skipping")
    last = await scene.claim_one("skipping")
    async with settling(scene, Done(), last):
        redriving = asyncio.create_task(scene.redrive(dead))
        await scene.until_waiting(1)
    assert await redriving == [dead.envelope.event_id]
    scene.check()
    assert ids(await scene.drain("skipping")) == [dead.envelope.event_id]


async def test_a_settlement_waits_for_the_redrive_of_an_event_of_its_key(scene: Scene) -> None:
    await scene.bus.publish(skip(number=0), skip(number=1), skip(number=2))
    dead = await scene.kill_next("skipping")
    head = await scene.claim_one("skipping")
    with scene.backend.stalled_event(dead.position):
        # The redrive holds the lock of the key and waits for the event. The worker waits for the key.
        redriving = asyncio.create_task(scene.redrive(dead))
        await scene.until_waiting(1)
        completing = asyncio.create_task(scene.settle(Done(), head))
        await scene.until_waiting(2)
    await asyncio.gather(redriving, completing)
    scene.check()
    first, second = await scene.drain("skipping")
    assert first.envelope.event_id == dead.envelope.event_id
    assert second.envelope.payload["number"] == 2


async def test_an_event_redriven_while_its_head_is_claimed_waits_for_the_head(scene: Scene) -> None:
    await scene.bus.publish(skip(number=0), skip(number=1))
    dead = await scene.kill_next("skipping")
    follower = next(row for row in scene.picture.rows if row.open)
    scene.backend.reset_shortcuts(scene.bus)
    async with scene.second() as second:
        with scene.backend.stalled_event(dead.position):
            redriving = asyncio.create_task(scene.redrive(dead))
            await scene.until_waiting(1)
            (head,) = await scene.claim("skipping", bus=second)
            assert head.position == follower.position
        await redriving
    scene.check()
    assert await scene.claim("skipping") == []
    await scene.settle(Done(), head)
    assert ids(await scene.drain("skipping")) == [dead.envelope.event_id]


async def test_only_one_of_two_concurrent_redrives_takes_effect(scene: Scene) -> None:
    await scene.bus.publish(step(), step(number=1))
    dead = await scene.kill_next("line")
    with scene.backend.stalled_event(dead.position):
        first = asyncio.create_task(scene.redrive(dead))
        await scene.until_waiting(1)
        second = asyncio.create_task(scene.redrive(dead))
        await scene.until_waiting(2)
    assert sorted([await first, await second]) == [[], [dead.envelope.event_id]]
    assert (await scene.log_types()).count("dead_letter.redriven") == 1
    assert len(await scene.drain("line")) == 2


async def test_a_discard_that_meets_a_redrive_does_nothing(scene: Scene) -> None:
    await scene.bus.publish(step(), step(number=1))
    dead = await scene.kill_next("line")
    with scene.backend.stalled_event(dead.position):
        redriving = asyncio.create_task(scene.redrive(dead))
        await scene.until_waiting(1)
        discarding = asyncio.create_task(scene.discard(dead))
        await scene.until_waiting(2)
    assert await redriving == [dead.envelope.event_id]
    assert await discarding == []
    assert len(await scene.drain("line")) == 2


async def test_the_cancellation_of_an_event_that_is_just_done_leaves_its_key_free(scene: Scene) -> None:
    await scene.bus.publish(step())
    delivery = await scene.claim_one("line")
    async with settling(scene, Done(), delivery):
        cancelling = asyncio.create_task(scene.cancel(delivery))
        await scene.until_waiting(1)
    with pytest.raises(NotFound):
        await cancelling
    scene.check()
    await scene.bus.publish(step(number=1))
    assert len(await scene.claim("line")) == 1


async def test_the_cancellation_of_an_event_that_is_just_claimed_reaches_its_worker(scene: Scene) -> None:
    first = step()
    await scene.bus.publish(first)
    async with scene.backend.caller(scene.bus) as publisher:
        async with publisher.join() as transaction:
            await transaction.publish(step(number=1))
        cancelling = asyncio.create_task(scene.cancel(first))
        await scene.until_waiting(1)
        (delivery,) = await scene.claim("line")
        await publisher.commit()
    assert await cancelling == "requested"
    renewal = await asyncio.to_thread(scene.bus.renew, {delivery.token: HOUR})
    assert renewal.cancelled == {delivery.position}


async def test_workers_that_settle_and_publish_across_keys_do_not_deadlock(scene: Scene) -> None:
    keys = "abcdef"
    await scene.bus.publish(*(step(key) for key in keys))
    deliveries = {d.envelope.partition_key: d for d in [await scene.claim_one("line") for _ in keys]}
    gate = asyncio.Barrier(len(keys))

    async def hand_over(key: str, others: str) -> None:
        async with scene.bus.transaction(hold=[deliveries[key]]) as transaction:
            await transaction.publish(*(step(other, 1) for other in others))
            await transaction.settle(deliveries[key], Done())
            await gate.wait()

    await asyncio.gather(*(hand_over(key, keys if number % 2 else keys[::-1]) for number, key in enumerate(keys)))
    assert len(await scene.drain("line")) == len(keys) ** 2


async def test_publishers_workers_and_reapers_at_once_lose_nothing(scene: Scene) -> None:
    events = [step(str(number % 4), number) for number in range(80)]
    done: list[Delivery] = []
    gate = asyncio.Barrier(6)

    async def publish(share: int) -> None:
        await gate.wait()
        for event in events[share::2]:
            await scene.bus.publish(event)

    async def work(share: int) -> None:
        await gate.wait()
        async with scene.second() as bus:
            while len(done) < len(events):
                for delivery in await scene.claim("line", 8, bus=bus):
                    if delivery.envelope.payload["number"] % 7 == share and not delivery.suspect:
                        scene.backend.expire([delivery.token])
                        break
                    try:
                        async with bus.transaction() as transaction:
                            await transaction.settle(delivery, Done())
                    except LeaseLost:
                        break
                    done.append(delivery)
                await bus.reap()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(publish(share) for share in range(2)), *(work(share) for share in range(4)))
    assert sorted(ids(done)) == sorted(ids(events))
    assert scene.picture.rows == []
