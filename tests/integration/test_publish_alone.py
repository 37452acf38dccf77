"""A publish that needs only one statement: it runs without a transaction, and keeps every promise of a transaction."""

from uuid import uuid4

import msgspec
import pytest
from psycopg.errors import UniqueViolation

from bench.explain import ExplainedBus
from kingdom.backends.postgres.transaction import COPY_FRESH_FROM_ROWS
from kingdom.bus import Envelope, Stream, Topology
from tests.integration.running import numbered, open_bus, rows, statuses, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
ONE = [Envelope(type="Job")]
STEPS = [Envelope(type="Step", partition_key=f"key-{number % 2}") for number in range(5)]


def step(key: str) -> Envelope:
    return Envelope(type="Step", partition_key=key)


@pytest.mark.parametrize(("declared", "envelopes"), [(JOBS, ONE), (LINE, STEPS[:1]), (LINE, STEPS)])
async def test_a_publish_of_new_events_is_one_statement(dsn: str, declared: Stream, envelopes: list[Envelope]) -> None:
    async with ExplainedBus(dsn, Topology([declared])) as bus:
        assert await bus.publish(*envelopes) == ()
        names = [plan.name for plan in bus.take() if plan.name != "notify"]
        assert names == ["publish_ordered" if declared.ordered else "publish_one"]
        assert await statuses(bus) == {"PENDING": len(envelopes)}


async def test_a_publish_of_many_new_events_is_one_copy(dsn: str) -> None:
    async with ExplainedBus(dsn, Topology([JOBS])) as bus:
        assert await bus.publish(*numbered("Job", COPY_FRESH_FROM_ROWS)) == ()
        # COPY has no plan, so any plan here is of another statement.
        assert [plan.name for plan in bus.take() if plan.name != "notify"] == []
        assert await statuses(bus) == {"PENDING": COPY_FRESH_FROM_ROWS}


async def test_only_a_chosen_id_is_looked_up_among_the_ended_events(dsn: str) -> None:
    async with ExplainedBus(dsn, Topology([JOBS, LINE])) as bus:
        await bus.publish(Envelope(type="Job"), step("key"))
        assert bus.take("withdraw_known") == []
        await bus.publish(Envelope(type="Job"), Envelope(type="Job", event_id=uuid4()))
        (lookup,) = bus.take("withdraw_known")
        assert [node["Actual Rows"] for node in lookup.nodes() if node["Node Type"] == "Function Scan"] == [1]


async def test_a_publish_continues_after_its_prepared_statements_were_removed(dsn: str) -> None:
    async with open_bus(dsn, JOBS, LINE, connections=1) as bus:
        await bus.publish(Envelope(type="Job"))
        await bus.publish(Envelope(type="Job"), step("key"))
        await rows(bus, "DEALLOCATE ALL")
        await bus.publish(Envelope(type="Job"))
        await rows(bus, "DEALLOCATE ALL")
        await bus.publish(Envelope(type="Job"), step("key"))
        assert await statuses(bus) == {"PENDING": 6}


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


@pytest.mark.parametrize("commit_each", [False, True])
async def test_statements_of_one_round_trip_commit_together_unless_each_commits_by_itself(
    dsn: str, *, commit_each: bool
) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await rows(bus, "CREATE TABLE numbers (number int PRIMARY KEY)")
        statements = [("INSERT INTO numbers VALUES (%(number)s)", {"number": number}) for number in (1, 1, 2)]
        async with bus.pool.connection() as connection:
            with pytest.raises(UniqueViolation):
                await connection.run(*statements, commit_each=commit_each)
        stored = await rows(bus, "SELECT number FROM numbers ORDER BY 1")
        assert [row["number"] for row in stored] == ([1, 2] if commit_each else [])
