"""A publish that needs only one statement runs without a transaction block, and gives the same guarantees."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from psycopg.errors import UniqueViolation

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres.writing import COPIES_PER_STATEMENT
from kingdom.bus import Done, Envelope, RetryPolicy, Stream, Topology
from kingdom.clock import utc_now
from tests.integration.running import numbered, open_bus, rows, statuses, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
ONE = [Envelope(type="Job")]
STEPS = [Envelope(type="Step", partition_key=f"key-{number % 2}") for number in range(5)]


def step(key: str) -> Envelope:
    return Envelope(type="Step", partition_key=key)


@pytest.mark.parametrize(
    ("declared", "envelopes", "name"),
    [
        (JOBS, ONE, "publish_one_fresh"),
        (JOBS, numbered("Job", COPIES_PER_STATEMENT), "publish_fresh"),
        (LINE, STEPS[:1], "publish_ordered"),
        (LINE, STEPS, "publish_ordered"),
    ],
)
async def test_a_publish_of_new_events_is_one_statement(
    dsn: str, declared: Stream, envelopes: list[Envelope], name: str
) -> None:
    async with ExplainedBus(dsn, Topology([declared])) as bus:
        assert await bus.publish(*envelopes) == ()
        assert [plan.name for plan in bus.take() if plan.name != "notify"] == [name]
        assert await statuses(bus) == {"PENDING": len(envelopes)}


@pytest.mark.parametrize("ended", [False, True])
async def test_more_events_than_one_statement_takes_are_all_published_and_each_duplicate_is_named(
    dsn: str, *, ended: bool
) -> None:
    async with open_bus(dsn, JOBS) as bus:
        known = [msgspec.structs.replace(each, event_id=uuid4()) for each in numbered("Job", 2)]
        assert await bus.publish(*known) == ()
        if ended:
            claimed = await bus.claim("jobs", 2, "worker")
            async with bus.transaction(hold=claimed) as transaction:
                await transaction.settle_all(dict.fromkeys(claimed, Done()))
        new = numbered("Job", 2 * COPIES_PER_STATEMENT)
        found = await bus.publish(known[0], *new, known[1])
        assert [copy.envelope for copy in found] == known
        assert (await statuses(bus)).total() == len(new) + 2
        assert [copy.envelope for copy in await bus.publish(*new)] == new


async def test_an_event_is_stored_the_same_way_alone_and_among_many(dsn: str) -> None:
    bare, full = (
        Envelope(type="Job"),
        Envelope(
            type="Job",
            payload={"text": "a\tb\n\\ ü"},
            schema_version=3,
            owner_id="owner",
            partition_key="key",
            aggregate_type="order",
            aggregate_id="7",
            attributes={"tenant": "t"},
        ),
    )
    later = utc_now() + timedelta(hours=1)
    thrice = Stream(name="jobs", subscribes=frozenset({"Job"}), retry=RetryPolicy(max_attempts=3))
    async with open_bus(dsn, thrice) as bus:
        await bus.publish(bare, at=later)
        await bus.publish(full, at=later)
        alone = await contents(bus)
        await rows(bus, "TRUNCATE kingdom.outbox_event")
        await bus.publish(bare, full, at=later)
        assert await contents(bus) == alone


@pytest.mark.parametrize("ordered", [False, True])
async def test_each_of_many_events_gets_what_its_own_stream_declares(dsn: str, *, ordered: bool) -> None:
    limits = {"Call": 3, "Mail": 7}
    streams = [
        Stream(name=kind.lower(), subscribes=frozenset({kind}), ordered=ordered, retry=RetryPolicy(max_attempts=limit))
        for kind, limit in limits.items()
    ]
    published = [
        Envelope(type=kind, schema_version=version, partition_key="key", owner_id=f"owner of {kind}")
        for version, kind in enumerate(limits, start=1)
    ]
    async with open_bus(dsn, *streams) as bus:
        await bus.publish(*published)
        stored = await rows(bus, "SELECT * FROM kingdom.outbox_event ORDER BY id")
        assert [
            (each["event_type"], each["stream"], each["max_attempts"], each["schema_version"], each["owner_id"])
            for each in stored
        ] == [("Call", "call", 3, 1, "owner of Call"), ("Mail", "mail", 7, 2, "owner of Mail")]


async def contents(bus: PostgresBus) -> list[dict[str, Any]]:
    """Return the stored events without the columns that differ for each insert."""
    differing = {"id", "created_at", "updated_at"}
    stored = await rows(bus, "SELECT * FROM kingdom.outbox_event ORDER BY id")
    return [{name: value for name, value in row.items() if name not in differing} for row in stored]


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


async def test_an_event_is_no_duplicate_of_itself_if_only_its_wake_up_has_to_be_repeated(dsn: str) -> None:
    async with open_bus(dsn, JOBS, LINE, connections=1) as bus:
        await bus.publish(Envelope(type="Job"))
        await rows(bus, "DEALLOCATE ALL")
        assert await bus.publish(step("key")) == ()
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
