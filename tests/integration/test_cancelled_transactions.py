"""A cancelled task ends as cancelled. Otherwise a loop that continues after errors would never end."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, LiteralString

import pytest
from psycopg_pool import PoolClosed

from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.bus import EFFECTS, Envelope, Stream, Topology
from kingdom.errors import Unavailable
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually, open_bus

JOBS = Stream(name="jobs")
# More turns of the loop than handing over a connection takes.
TURNS = 12
OWN_ERROR: LiteralString = """
DO $$ BEGIN
    PERFORM pg_sleep(600);
EXCEPTION WHEN query_canceled THEN
    RAISE EXCEPTION 'not the error of a cancellation';
END $$
"""

SESSIONS_ASLEEP: LiteralString = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
NUMBER: LiteralString = "SELECT %(number)s::int AS number, pg_backend_pid() AS session"


async def test_a_transaction_that_is_cancelled_twice_gives_its_connection_back(dsn: str) -> None:
    entered = asyncio.Event()
    async with open_bus(dsn, JOBS, connections=1) as bus:

        async def hang() -> None:
            async with bus.transaction() as transaction:
                await transaction.get(EFFECTS.name, "any")
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await entered.wait()
        # A deadline and a lost lease at the same time: the second cancellation arrives during the rollback.
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await bus.publish(Envelope(type="Job", stream="jobs"))


@pytest.mark.parametrize("turns", range(TURNS))
async def test_a_task_cancelled_as_its_connection_arrives_does_not_use_it(dsn: str, turns: int) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        waiting = await _next_in_line(bus)
        if await _ended_before_the_cancellation(waiting, turns):
            await bus.pool.putconn(waiting.result())
        await bus.publish(Envelope(type="Job", stream="jobs"))


@pytest.mark.parametrize("turns", range(TURNS))
async def test_a_task_cancelled_as_the_pool_closes_ends_as_cancelled(dsn: str, turns: int) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus, bus.pool.connection():
        waiting = await _in_line(bus)
        closing = asyncio.create_task(bus.pool.close())
        if await _ended_before_the_cancellation(waiting, turns):
            assert isinstance(waiting.exception(), PoolClosed)
        await closing


@pytest.mark.parametrize("turns", range(4))
async def test_a_task_cancelled_as_the_bus_opens_does_not_continue(dsn: str, turns: int) -> None:
    bus = PostgresBus(dsn, Topology([JOBS]))
    opening = asyncio.create_task(bus.__aenter__())
    while (is_full := bus.pool._pool_full_event) is None:
        assert not opening.done()
        await asyncio.sleep(0)
    is_full.set()
    is_open = await _ended_before_the_cancellation(opening, turns)
    assert bus.pool.closed is not is_open
    await bus.close()


async def test_a_cancelled_close_releases_everything(backend: BackendUnderTest) -> None:
    is_refused = False
    # A store of files raises an error at a second close.
    with suppress(Unavailable):
        async with backend.open(Topology([JOBS]), [EFFECTS]) as bus:
            # A waiting bus has a listener for hints, which ends first.
            await bus.wait(["jobs"], timedelta(0))
            closing = asyncio.create_task(bus.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
            assert closing.cancelled()
            with pytest.raises(Unavailable):
                await bus.publish(Envelope(type="Job", stream="jobs"))
            is_refused = True
    assert is_refused


async def test_an_error_during_a_cancellation_does_not_replace_it(dsn: str) -> None:
    async with open_bus(dsn, JOBS) as bus:

        async def sleep_on_the_server() -> None:
            async with bus.pool.connection() as connection:
                await connection.execute(OWN_ERROR)

        async def is_asleep() -> bool:
            async with bus.pool.connection() as connection:
                asleep = await connection.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                return await asleep.fetchone() is not None

        sleeping = asyncio.create_task(sleep_on_the_server())
        await eventually(is_asleep)
        sleeping.cancel()
        await asyncio.wait({sleeping})
        assert sleeping.cancelled()


async def test_cancelled_statements_end_on_the_server_and_leave_the_connection_usable(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=2) as bus, bus.pool.connection() as connection:
        session = connection.info.backend_pid
        sleeping = asyncio.create_task(connection.run(("BEGIN", {}), ("SELECT pg_sleep(600)", {}), ("COMMIT", {})))

        async def is_asleep() -> bool:
            async with bus.pool.connection() as other:
                (asleep,) = await other.run((SESSIONS_ASLEEP, {}))
                return asleep.tuples() == [(session,)]

        await eventually(is_asleep)
        sleeping.cancel()
        await asyncio.wait({sleeping})
        assert sleeping.cancelled()
        assert not await is_asleep()
        await connection.roll_back()
        assert await _answers(connection, 1) == [(1, session)]


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize(("statements", "commit_each"), [(1, False), (3, False), (3, True)])
async def test_the_answer_to_cancelled_statements_is_not_returned_for_later_ones(
    dsn: str, statements: int, turns: int, *, commit_each: bool
) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus, bus.pool.connection() as connection:
        session = connection.info.backend_pid
        for earlier in range(2):
            asking = asyncio.create_task(_answers(connection, *[earlier] * statements, commit_each=commit_each))
            await _ended_before_the_cancellation(asking, turns)
        assert await _answers(connection, 7, 8) == [(7, session), (8, session)]


async def _ended_before_the_cancellation(task: asyncio.Task[Any], turns: int) -> bool:
    """Cancel a task after some turns of the loop, and return whether it had ended by then."""
    for _ in range(turns):
        await asyncio.sleep(0)
    came_first = task.done()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() is not came_first
    return came_first


async def _next_in_line(bus: PostgresBus) -> asyncio.Task[Connection]:
    """Return a task that is about to get the only connection, which was just released."""
    async with bus.pool.connection():
        return await _in_line(bus)


async def _in_line(bus: PostgresBus) -> asyncio.Task[Connection]:
    async def is_in_line() -> bool:
        return bus.pool.get_stats().get("requests_waiting") == 1

    waiting = asyncio.create_task(bus.pool.getconn())
    await eventually(is_in_line)
    return waiting


async def _answers(connection: Connection, *numbers: int, commit_each: bool = False) -> list[tuple[int, int]]:
    """Ask for numbers, and return each with the session that has answered."""
    answers = await connection.run(*((NUMBER, {"number": number}) for number in numbers), commit_each=commit_each)
    return [row for rows in answers for row in rows.tuples()]
