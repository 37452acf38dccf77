"""Defaults of the database or the role, such as another isolation level, do not affect a bus."""

import asyncio
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateBouncer, PrivateCluster
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Done, Envelope, Topology
from tests.integration.running import eventually, open_bus, rows, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
DEFAULTS: dict[str, LiteralString] = {
    "of the database": "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
    "of the role": "ALTER ROLE CURRENT_USER IN DATABASE {} SET default_transaction_isolation = 'serializable'",
}


@pytest.fixture(scope="module")
def bouncer(cluster: PrivateCluster) -> Iterator[PrivateBouncer]:
    with PrivateBouncer(cluster.dsn, pool_size=3) as bouncer:
        yield bouncer


@pytest.fixture(params=DEFAULTS)
def changed_database(request: pytest.FixtureRequest, dsn: str) -> str:
    """A database whose sessions start with another isolation level."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(DEFAULTS[request.param].format(connection.info.dbname))
    return dsn


@pytest.fixture(params=["directly", "through PgBouncer"])
def connection_options(
    request: pytest.FixtureRequest, bouncer: PrivateBouncer, changed_database: str
) -> tuple[str, dict[str, Any]]:
    if request.param == "directly":
        return changed_database, {}
    return bouncer.dsn(str(conninfo_to_dict(changed_database)["dbname"])), {"through_pgbouncer": True}


@pytest.fixture
def opened(connection_options: tuple[str, dict[str, Any]]) -> PostgresBus:
    place, options = connection_options
    return PostgresBus(place, Topology([JOBS, LINE]), **options)


def step(number: int) -> Envelope:
    return Envelope(type="Step", partition_key="key", payload={"n": number})


async def test_an_event_that_is_published_while_the_first_of_its_key_runs_is_claimed_next(opened: PostgresBus) -> None:
    async with opened as bus:
        await bus.publish(step(0))
        (first,) = await bus.claim("line", 1, "test")
        async with bus.transaction(hold=[first]) as transaction:
            await bus.publish(step(1))
            await transaction.settle(first, Done())
        await bus.publish(step(2))
        following = await bus.claim("line", 10, "test")
    assert [delivery.envelope.payload["n"] for delivery in following] == [1, 2]


async def test_waiting_for_an_event_of_another_sender_reports_a_duplicate(
    opened: PostgresBus, changed_database: str
) -> None:
    envelope = Envelope(type="Job")
    async with opened as bus, open_bus(changed_database, JOBS) as watching:
        async with await psycopg.AsyncConnection.connect(changed_database) as other:
            await other.set_isolation_level(IsolationLevel.READ_COMMITTED)
            async with watching.join(other) as transaction:
                await transaction.publish(envelope)
            publishing = asyncio.create_task(bus.publish(envelope))

            async def waits() -> bool:
                return bool(await rows(watching, "SELECT 1 FROM pg_locks WHERE NOT granted"))

            await eventually(waits)
            await other.commit()
        assert [copy.envelope for copy in await publishing] == [envelope]


async def test_repairs_by_hand_begin_with_the_same_isolation(opened: PostgresBus) -> None:
    async with opened as bus, bus.pool.connection() as connection, connection.transaction():
        cursor = await connection.execute("SHOW transaction_isolation")
        assert await cursor.fetchall() == [{"transaction_isolation": "read committed"}]
