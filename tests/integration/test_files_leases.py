"""Leases of a store of files, which processes check without holding the lock."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.bus import Delivery, Done, Envelope, LogCursor, LogEntry
from kingdom.bus.outcome import Release
from kingdom.errors import LeaseLost
from kingdom.verify.workload import ANY, topology
from tests.patience import PATIENCE_SECONDS

LEASE = timedelta(milliseconds=100)
LONG = timedelta(seconds=30)


async def reaped(bus: FilesBus) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await bus.reap():  # noqa: ASYNC110 - the lease ends by time alone
            await asyncio.sleep(0.01)


async def write_while(bus: FilesBus, delivery: Delivery, meanwhile: Awaitable[None]) -> None:
    async with bus.transaction(hold=[delivery]) as transaction:
        assert transaction.held == (delivery,)
        await meanwhile
        await transaction.append(LogEntry(type="stale", actor="test"))


async def test_a_transaction_under_a_lost_lease_is_refused_and_writes_nothing(realm: Path) -> None:
    async with FilesBus(realm, topology(LEASE)) as bus, FilesBus(realm, topology(LEASE)) as other:
        await bus.publish(Envelope(type="Job", stream=ANY))
        (delivery,) = await bus.claim(ANY, 1, "worker")
        with pytest.raises(LeaseLost) as refused:
            await write_while(bus, delivery, reaped(other))
        assert refused.value.positions == {delivery.position}
        assert await FilesOperations(other).read_log(LogCursor(), 10) == []


async def test_a_lease_ends_with_its_last_event_although_a_released_event_is_claimed_again(realm: Path) -> None:
    async with FilesBus(realm, topology(LONG)) as bus:
        await bus.publish(*(Envelope(type="Job", stream=ANY) for _ in range(2)))
        given_back, kept = await bus.claim(ANY, 2, "first")
        async with bus.transaction() as transaction:
            await transaction.settle(given_back, Release())
        (again,) = await bus.claim(ANY, 2, "second")
    async with FilesBus(realm, topology(LONG)) as newcomer, newcomer.transaction() as transaction:
        await transaction.settle(kept, Done())
    assert [path.stem for path in (realm / "bus" / "leases").iterdir()] == [str(again.token)]
