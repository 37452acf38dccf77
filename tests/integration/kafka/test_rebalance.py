"""Partitions that move to another worker while events of them are being handled."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kingdom.backends.kafka import Brokers, KafkaBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dispatcher, Event, Topology, Transaction
from kingdom.bus.port import LeaseRenewal
from tests.integration.kafka.conftest import COUNTERS, TOPOLOGY
from tests.integration.kafka.counting import Open, append, counting, placed, until_handled
from tests.integration.running import HOUR, at_work, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("courier", "renewed_early")]
KEYS = "abcdefghijkl"
PATIENT = Topology([replace(TOPOLOGY.stream("orders"), lease=HOUR, deadline=HOUR)])


class CountingBus(KafkaBus):
    """A bus that counts the renewals of its leases."""

    renewals = 0

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        renewal = super().renew(leases)
        self.renewals += 1
        return renewal


async def test_the_events_of_a_batch_go_on_though_some_of_its_partitions_move_to_another_worker(
    dsn: str, bus: PostgresBus, brokers: Brokers, kafka_bus: Open
) -> None:
    has_begun, may_continue = asyncio.Event(), asyncio.Event()
    dispatcher = Dispatcher()

    @dispatcher.reaction("OrderPlaced")
    async def handle(event: Event[Any], transaction: Transaction) -> None:
        has_begun.set()
        await may_continue.wait()
        await append(event, transaction)

    await bus.publish(*(placed(number, key) for number in range(2) for key in KEYS))
    async with CountingBus(dsn, PATIENT, [COUNTERS], brokers=brokers, idle_limit=HOUR) as owner:
        reader = owner._open_reader(PATIENT.stream("orders"))

        async def all_have_arrived() -> bool:
            return sum(len(each.messages) for each in reader._partitions.values()) == 2 * len(KEYS)

        await eventually(all_have_arrived)
        assert all(each.messages for each in reader._partitions.values())
        async with at_work(owner, dispatcher, "orders"):
            await has_begun.wait()
            async with kafka_bus() as other, at_work(other, counting(), "orders"):

                async def some_are_lost() -> bool:
                    return 0 < len(reader._partitions) < brokers.partitions

                await eventually(some_are_lost)
                before = owner.renewals

                async def has_noticed() -> bool:
                    # The first one may have begun before the loss.
                    return owner.renewals >= before + 2

                await eventually(has_noticed)
                may_continue.set()
                # The lease is an hour long.
                for key in KEYS:
                    await until_handled(bus, [0, 1], key)
