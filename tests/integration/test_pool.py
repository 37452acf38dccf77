"""The pool keeps one used connection at hand, without keeping it from waiting callers or beyond its end."""

import asyncio

import psycopg
import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Envelope, Stream
from kingdom.errors import Unavailable
from tests.integration.running import eventually, open_bus

JOBS = Stream(name="jobs")
JOB = Envelope(type="Job", stream="jobs")


async def end_session_at_hand(bus: PostgresBus, dsn: str) -> None:
    async with bus.pool.connection() as used:
        session = used.info.backend_pid
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s, 5000)", [session])


async def test_the_first_connection_that_comes_back_is_used_next(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=2) as bus:
        first, second = await bus.pool.getconn(), await bus.pool.getconn()
        await bus.pool.putconn(second)
        await bus.pool.putconn(first)
        assert bus.pool.get_stats()["pool_available"] == 1
        async with bus.pool.connection() as again:
            assert again is second


async def test_a_caller_that_waits_gets_a_connection_before_one_is_kept_at_hand(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        used = await bus.pool.getconn()

        async def is_waiting() -> bool:
            return bus.pool.get_stats().get("requests_waiting") == 1

        waiting = asyncio.create_task(bus.pool.getconn())
        await eventually(is_waiting)
        await bus.pool.putconn(used)
        assert await waiting is used
        await bus.pool.putconn(used)


async def test_a_connection_goes_back_to_the_pool_after_a_limited_time(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        await bus.publish(JOB)
        async with bus.pool.connection() as used:
            used.at_hand_until = 0.0
        assert bus.pool.get_stats()["pool_available"] == 1
        async with bus.pool.connection():
            pass
        assert bus.pool.get_stats()["pool_available"] == 0, "a connection from the pool may stay at hand again"


async def test_draining_and_closing_end_the_connection_at_hand(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        async with bus.pool.connection() as drained:
            pass
        await bus.pool.drain()
        assert drained.closed
        async with bus.pool.connection() as closed:
            assert closed is not drained
    assert closed.closed


async def test_a_check_of_the_pool_replaces_a_broken_connection_at_hand(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        await end_session_at_hand(bus, dsn)
        await bus.pool.check()
        await bus.publish(JOB)


async def test_a_connection_that_its_server_has_ended_is_not_kept_at_hand(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        await end_session_at_hand(bus, dsn)
        with pytest.raises(Unavailable):
            await bus.publish(JOB)
        await bus.publish(JOB)
