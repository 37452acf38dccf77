"""The store reports where an event of a stream with a transport is, without a broker."""

import asyncio
from datetime import timedelta

import pytest

from kingdom.backends.kafka.courier_queue import CourierQueue
from kingdom.backends.postgres import PostgresOperations
from kingdom.bus import Dispatcher, Envelope, Event, Transaction
from kingdom.bus.why import why
from tests.integration.running import at_work, open_bus, stream, until_all
from tests.patience import PATIENCE_SECONDS

CARRIED, STORED = stream("jobs", "Job", transport="kafka"), stream("jobs", "Job")
dispatcher = Dispatcher()


@dispatcher.reaction("Job")
async def finish(_event: Event[object], _transaction: Transaction) -> None:
    """Do nothing, so the event is done."""


async def test_a_nudge_after_a_joined_transaction_wakes_the_courier_before_it_polls(dsn: str) -> None:
    async with open_bus(dsn, CARRIED) as bus, open_bus(dsn, CARRIED) as elsewhere:
        for waiting in (bus, elsewhere):
            courier = asyncio.create_task(CourierQueue(waiting).wait(timedelta(hours=1)))
            # Repeat the nudge, because the other bus may not listen yet.
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not courier.done():
                    bus.nudge(["jobs"])
                    await asyncio.wait([courier], timeout=0.05)
            await courier


@pytest.mark.parametrize("is_handled", [False, True])
async def test_an_event_that_is_published_again_without_a_transport_has_one_situation(
    dsn: str, *, is_handled: bool
) -> None:
    event = Envelope(type="Job")
    async with open_bus(dsn, CARRIED) as bus:
        await bus.publish(event)
        (unsent,) = await PostgresOperations(bus).situations(event.event_id)
        assert "no courier runs" in why(unsent)
    async with open_bus(dsn, STORED) as bus:
        await bus.publish(event)
        if is_handled:
            async with at_work(bus, dispatcher):
                await until_all(bus, "DONE", 1)
        (stored,) = await PostgresOperations(bus).situations(event.event_id)
        assert stored.status == ("DONE" if is_handled else "PENDING")
