"""A publish that needs only one statement: it runs without a transaction, and keeps every promise of a transaction."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from psycopg.rows import DictRow

from bench.explain import ExplainedBus
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.bus import Bus, Envelope, Stream, Topology
from tests.integration.running import open_bus, rows, statuses, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
ONE = [Envelope(type="Job")]
STEPS = [Envelope(type="Step", partition_key=f"key-{number % 2}") for number in range(5)]


def step(key: str) -> Envelope:
    return Envelope(type="Step", partition_key=key)


async def take_key_and_fail(bus: Bus) -> None:
    async with bus.transaction() as transaction:
        await transaction.once("scope", "key", JOBS.lease)
        raise RuntimeError("roll back")


@pytest.mark.parametrize(("declared", "envelopes"), [(JOBS, ONE), (LINE, STEPS[:1]), (LINE, STEPS)])
async def test_a_publish_of_new_events_is_one_statement(dsn: str, declared: Stream, envelopes: list[Envelope]) -> None:
    async with ExplainedBus(dsn, Topology([declared])) as bus:
        assert await bus.publish(*envelopes) == ()
        names = [plan.name for plan in bus.take() if plan.name != "notify"]
        assert names == ["publish_ordered" if declared.ordered else "publish_one"]
        assert await statuses(bus) == {"PENDING": len(envelopes)}


async def test_only_a_chosen_id_is_looked_up_among_the_ended_events(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    fetch = PostgresTransaction._fetch

    async def noting(self: PostgresTransaction, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        executed.append(name)
        return await fetch(self, name, parameters)

    monkeypatch.setattr(PostgresTransaction, "_fetch", noting)
    async with open_bus(dsn, JOBS, LINE) as bus, bus.transaction() as transaction:
        await transaction.publish(Envelope(type="Job"), Envelope(type="Step", partition_key="key"))
    assert "withdraw_known" not in executed
    async with open_bus(dsn, JOBS, LINE) as bus, bus.transaction() as transaction:
        await transaction.publish(Envelope(type="Job"), Envelope(type="Job", event_id=uuid4()))
    assert executed.count("withdraw_known") == 1


async def test_a_publish_continues_after_a_rollback_has_removed_its_prepared_statements(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        await bus.publish(Envelope(type="Job"))
        with pytest.raises(RuntimeError):
            await take_key_and_fail(bus)
        async with bus.transaction() as transaction:
            await transaction.once("scope", "key", JOBS.lease)
        assert await rows(bus, "SELECT FROM pg_prepared_statements WHERE name LIKE 'kingdom%%'") == []
        await bus.publish(Envelope(type="Job"))
        assert await statuses(bus) == {"PENDING": 2}


async def test_an_event_that_is_published_again_is_a_duplicate(dsn: str) -> None:
    async with open_bus(dsn, JOBS) as bus:
        job = Envelope(type="Job")
        assert await bus.publish(job) == ()
        assert [copy.envelope for copy in await bus.publish(job)] == [job]
        assert await statuses(bus) == {"PENDING": 1}


async def test_an_ordered_event_that_is_published_again_is_left_out_and_creates_no_key(dsn: str) -> None:
    async with open_bus(dsn, LINE) as bus:
        first, later = step("a"), step("b")
        moved = msgspec.structs.replace(first, partition_key="c")
        await bus.publish(first)
        assert [copy.envelope for copy in await bus.publish(moved, later)] == [moved]
        assert await statuses(bus) == {"PENDING": 2}
        keys = await rows(bus, "SELECT partition_key FROM kingdom.outbox_key ORDER BY 1")
        assert [row["partition_key"] for row in keys] == ["a", "b"]


async def test_one_ordered_event_that_is_given_twice_is_published_once(dsn: str) -> None:
    async with open_bus(dsn, LINE) as bus:
        first = step("a")
        assert [copy.envelope for copy in await bus.publish(first, first)] == [first]
        assert await statuses(bus) == {"PENDING": 1}
