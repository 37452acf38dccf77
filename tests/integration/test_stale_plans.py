"""Plans that were made for a nearly empty table, and indexes that only some plans can use."""

from uuid import UUID

import psycopg
import pytest

from bench.explain import ExplainedBus
from bench.fill import fill_archive, fill_events
from kingdom.backends.postgres import PostgresOperations
from kingdom.bus import Envelope, Stream, Topology

STREAMS = Topology([Stream(name="stream-0"), Stream(name="line", ordered=True)])
LIMIT = 50


@pytest.mark.parametrize(("stream", "statement"), [("stream-0", "claim"), ("line", "claim_ordered")])
async def test_a_claim_that_was_planned_for_a_nearly_empty_table_stops_at_its_limit(
    dsn: str, stream: str, statement: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # No automatic statistics: the test sets them.
        connection.execute("ALTER TABLE kingdom.outbox_event SET (autovacuum_enabled = false)")
        fill_events(connection, 10_000)
        connection.execute("DELETE FROM kingdom.outbox_event WHERE id % 100 <> 0")
        connection.execute("ANALYZE kingdom.outbox_event")
    async with ExplainedBus(dsn, STREAMS, connections=1) as bus:
        await bus.claim(stream, LIMIT, "worker")
        await bus.publish(*(Envelope(type="Job", stream=stream, partition_key=f"key-{n}") for n in range(1000)))
        bus.take()
        assert await bus.claim(stream, LIMIT, "worker")
        (plan,) = bus.take(statement)
        (read,) = (node["Actual Rows"] for node in plan.nodes() if node.get("Index Name") == "outbox_open")
        assert 0 < read <= LIMIT


async def test_an_ended_event_is_found_by_the_index_of_the_archive(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill_archive(connection, 2000)
    async with ExplainedBus(dsn, STREAMS) as bus:
        assert await PostgresOperations(bus).situations(UUID("018bcfe5-6800-7000-8000-000000000000")) == []
        (plan,) = bus.take("situations")
        assert "outbox_archive_default_event_id_idx" in plan.indexes
        # The courier has one row at most.
        assert plan.read_whole <= {"courier"}
