"""`once` deduplicates across transactions and time."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from kingdom.bus import Bus
from tests.contract.scene import HOUR, Scene, eventually, ping


async def take(bus: Bus, key: str = "key", scope: str = "scope", keep: timedelta = HOUR) -> bool:
    async with bus.transaction() as transaction:
        return await transaction.once(scope, key, keep)


async def test_a_key_is_taken_once(scene: Scene) -> None:
    async with scene.second() as second:
        assert [await take(scene.bus), await take(second), await take(scene.bus)] == [True, False, False]


async def test_keys_and_scopes_are_independent(scene: Scene) -> None:
    assert await take(scene.bus)
    assert await take(scene.bus, key="other")
    assert await take(scene.bus, scope="other")


async def test_a_key_can_be_taken_only_once_in_one_transaction(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        assert await transaction.once("scope", "key", HOUR)
        assert not await transaction.once("scope", "key", HOUR)


async def test_a_key_of_a_rolled_back_transaction_is_free(scene: Scene) -> None:
    with suppress(ZeroDivisionError):
        async with scene.bus.transaction() as transaction:
            assert await transaction.once("scope", "key", HOUR)
            raise ZeroDivisionError
    assert await take(scene.bus)


async def test_a_key_can_be_taken_again_when_it_has_expired(scene: Scene) -> None:
    short = timedelta(milliseconds=50)
    assert await take(scene.bus, keep=short)
    await eventually(lambda: take(scene.bus), "the key expires")
    assert not await take(scene.bus)


async def test_asking_for_a_taken_key_does_not_keep_it_longer(scene: Scene) -> None:
    key, keep = "0", timedelta(milliseconds=250)
    assert await take(scene.bus, key, keep=keep)
    # On a slow machine the key may have expired by now, and is taken again.
    while await take(scene.bus, key):
        key, keep = f"{key}0", keep * 2
        assert await take(scene.bus, key, keep=keep)
    await eventually(lambda: take(scene.bus, key), "the key expires in its own time")


async def test_only_one_of_many_concurrent_requests_gets_the_key(scene: Scene) -> None:
    gate = asyncio.Barrier(8)

    async def ask() -> bool:
        async with scene.bus.transaction() as transaction:
            await gate.wait()
            return await transaction.once("scope", "key", HOUR)

    assert sorted(await asyncio.gather(*(ask() for _ in range(8)))) == [False] * 7 + [True]


async def test_a_request_for_a_held_key_waits_for_the_outcome(scene: Scene) -> None:
    async with (
        scene.backend.caller(scene.bus) as holder,
        scene.backend.caller(scene.bus) as asker,
        holder.join() as first,
        asker.join() as second,
    ):
        assert await first.once("scope", "key", HOUR)
        asking = asyncio.create_task(second.once("scope", "key", HOUR))
        await scene.until_waiting(1)
        await holder.rollback()
        assert await asking


async def test_only_the_one_of_five_transactions_that_takes_the_key_publishes(scene: Scene) -> None:
    async def arrive() -> None:
        async with scene.bus.transaction() as transaction:
            if await transaction.once("webhook", "delivery-1", HOUR):
                await transaction.publish(ping())

    await asyncio.gather(*(arrive() for _ in range(5)))
    assert len(await scene.claim("free")) == 1
