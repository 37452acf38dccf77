"""The cost of checking whether an event with a chosen id has already ended."""

from uuid import uuid4

import psycopg
import pytest

from bench.explain import ExplainedBus
from bench.fill import fill_archive
from kingdom.backends.postgres import PostgresOperations
from kingdom.bus import Envelope, Retention, Stream, Topology


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
async def test_the_cost_of_finding_an_id_among_ended_events_does_not_depend_on_their_number(
    dsn: str, size: int
) -> None:
    unknown = [Envelope(type="Measured", stream="stream-0", event_id=uuid4()) for _ in range(50)]
    async with ExplainedBus(dsn, Topology([Stream(name="stream-0")]), connections=1) as bus:
        await PostgresOperations(bus).retain(Retention(partitions_ahead_days=30))
        costs = []
        for rows in (200, size):
            with psycopg.connect(dsn, autocommit=True) as connection:
                fill_archive(connection, rows, given=True)
            bus.take()
            assert await bus.publish(*unknown[: len(unknown) // 2]) == ()
            (plan,) = bus.take("withdraw_known")
            costs.append(plan.buffers / 25)
            unknown = unknown[len(unknown) // 2 :]
    # The index has at most one more level for a hundred times as many events.
    assert costs[1] <= costs[0] + 2, costs
