"""Daily numbers: in order, without a gap, and never twice."""

import asyncio
from contextlib import suppress
from datetime import date, timedelta

import pytest

from kingdom.bus import Bus
from kingdom.bus.sequence import DAYS_KEPT, next_id
from kingdom.errors import Conflict, Misconfigured
from tests.contract.scene import Scene

TODAY = date(2026, 11, 15)


async def take(bus: Bus, prefix: str = "task", day: date = TODAY) -> str:
    while True:
        with suppress(Conflict):
            async with bus.transaction() as transaction:
                return await next_id(transaction, prefix, day)


async def test_numbers_follow_each_other(scene: Scene) -> None:
    assert [await take(scene.bus) for _ in range(3)] == [f"task-20261115-00{number}" for number in (1, 2, 3)]


async def test_a_new_day_starts_over_and_prefixes_count_separately(scene: Scene) -> None:
    await take(scene.bus)
    assert await take(scene.bus, day=date(2026, 11, 16)) == "task-20261116-001"
    assert await take(scene.bus, prefix="msg") == "msg-20261115-001"


async def test_a_repeated_day_continues_where_it_stopped(scene: Scene) -> None:
    tomorrow = TODAY + timedelta(days=1)
    taken = [await take(scene.bus, day=day) for day in (TODAY, tomorrow, TODAY, tomorrow, TODAY)]
    assert taken == [
        "task-20261115-001",
        "task-20261116-001",
        "task-20261115-002",
        "task-20261116-002",
        "task-20261115-003",
    ]


async def test_a_day_whose_numbers_are_forgotten_gets_none(scene: Scene) -> None:
    days = [TODAY + timedelta(days=number) for number in range(DAYS_KEPT + 1)]
    for day in days:
        await take(scene.bus, day=day)
    with pytest.raises(Misconfigured, match=r"2026-11-15 is before the oldest day.*correct the clock"):
        await take(scene.bus, day=TODAY)
    assert await take(scene.bus, day=days[1]) == "task-20261116-002"


async def test_a_number_of_a_rolled_back_transaction_is_given_again(scene: Scene) -> None:
    with suppress(ZeroDivisionError):
        async with scene.bus.transaction() as transaction:
            await next_id(transaction, "task", TODAY)
            raise ZeroDivisionError
    assert await take(scene.bus) == "task-20261115-001"


async def test_a_number_above_999_has_four_digits(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        numbers = [await next_id(transaction, "task", TODAY) for _ in range(1000)]
    assert numbers[-1] == "task-20261115-1000"


async def test_concurrent_requests_get_every_number_once(scene: Scene) -> None:
    async with scene.second() as second:
        taken = await asyncio.gather(*(take(bus) for _ in range(8) for bus in (scene.bus, second)))
    assert sorted(taken) == [f"task-20261115-{number:03d}" for number in range(1, 17)]
