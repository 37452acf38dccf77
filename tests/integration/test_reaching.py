"""Connections: a read-only server, a server that does not answer, and the choice among several hosts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.servers import LOOPBACK
from kingdom.backends.postgres import PostgresOperations, lease_renewals
from kingdom.backends.postgres import bus as postgres_bus
from kingdom.backends.postgres.connection import Call, with_timeouts
from kingdom.bus import Envelope
from kingdom.errors import Unavailable
from tests.integration.running import HOUR, eventually, open_bus, rows, stream
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")
JOBS = stream("jobs", "Job")


def set_read_only(dsn: str, value: str) -> None:
    with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = {value}")


async def test_a_session_on_a_read_only_server_is_replaced(dsn: str) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(Envelope(type="Job"))
        (delivery,) = await bus.claim("jobs", 1, "test")
    set_read_only(dsn, "on")
    async with open_bus(dsn, JOBS) as bus:
        operations = PostgresOperations(bus)
        with pytest.raises(Unavailable, match="read-only"):
            await bus.claim("jobs", 1, "test")
        with pytest.raises(Unavailable, match="read-only"):
            await bus.publish(Envelope(type="Job"))
        with pytest.raises(Unavailable, match="read-only"):
            await operations.pause("jobs", reason="test", actor="test")
        with pytest.raises(Unavailable, match="read-only"):
            bus.renew({delivery.token: HOUR})
        set_read_only(dsn, "off")
        assert bus.renew({delivery.token: HOUR}).alive == {delivery.token}
        await until_accepted(lambda: bus.publish(Envelope(type="Job")))
        assert await until_accepted(lambda: bus.claim("jobs", 1, "test"))
        await until_accepted(lambda: operations.pause("jobs", reason="test", actor="test"))


async def until_accepted(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it succeeds: each connection that the pool opened before may fail once."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(Unavailable):
                return await call()


class Proxy:
    """A proxy that can stop forwarding without closing connections."""

    def __init__(self, dsn: str) -> None:
        self._target = conninfo_to_dict(dsn)
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connect, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield make_conninfo(**{**self._target, "host": LOOPBACK, "port": port})
        finally:
            server.close()
            self.fall_silent()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def fall_silent(self) -> None:
        """Stop forwarding on the current connections. New ones work."""
        for task in self._tasks:
            task.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(str(self._target["host"]), self._target["port"])
        self._writers += (writer, far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(_forward(source, sink)))


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    sink.close()


@pytest.mark.timing
async def test_a_connection_to_a_server_that_falls_silent_is_replaced(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(dsn)
    async with proxy.open() as through, open_bus(through, JOBS, connections=1) as bus:
        await bus.publish(Envelope(type="Job"), Envelope(type="Job"))
        (delivery,) = await bus.claim("jobs", 1, "test")
        await asyncio.to_thread(bus.renew, {delivery.token: HOUR})
        monkeypatch.setattr(postgres_bus, "_ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(lease_renewals, "_ANSWER_SECONDS", 0.2)
        proxy.fall_silent()
        with pytest.raises(Unavailable):
            await bus.claim("jobs", 1, "test")
        with pytest.raises(Unavailable):
            await asyncio.to_thread(bus.renew, {delivery.token: HOUR})
        monkeypatch.undo()
        assert (await asyncio.to_thread(bus.renew, {delivery.token: HOUR})).alive == {delivery.token}

        async def claims() -> bool:
            return len(await bus.claim("jobs", 1, "test")) == 1

        await eventually(claims)


@pytest.mark.parametrize(
    ("dsn", "attributes"),
    [
        ("host=one,two dbname=k", "read-write"),
        ("postgresql://one,two/k?target_session_attrs=any", "any"),
        ("hostaddr=10.0.0.1,10.0.0.2 dbname=k", "read-write"),
        ("postgresql://one/k", None),
    ],
)
def test_the_primary_is_chosen_if_several_hosts_are_named(dsn: str, attributes: str | None) -> None:
    assert conninfo_to_dict(with_timeouts(dsn)).get("target_session_attrs") == attributes


def test_connections_check_for_a_vanished_server_every_few_seconds_unless_the_address_says_otherwise() -> None:
    given = conninfo_to_dict(with_timeouts("postgresql://one/k?keepalives_idle=60"))
    assert (given["keepalives_interval"], given["keepalives_count"], given["tcp_user_timeout"]) == ("5", "3", "10000")
    assert given["keepalives_idle"] == "60"


@pytest.mark.parametrize("statements", [1, 3])
@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "running"])
async def test_statements_of_a_session_that_the_server_ends_fail_at_once(
    dsn: str, statements: int, *, is_idle: bool
) -> None:
    async with open_bus(dsn, JOBS, connections=2) as bus:
        async with bus.pool.connection() as connection:
            asleep: list[Call] = [("SELECT pg_sleep(600)", {})] * statements
            # An idle connection that was used before is still watched.
            await connection.run(("SELECT 1", {}))
            running = None if is_idle else asyncio.create_task(connection.run(*asleep))
            await asyncio.sleep(0)
            await rows(bus, "SELECT pg_terminate_backend(%s, 10000)", connection.info.backend_pid)
            with pytest.raises(psycopg.OperationalError):
                await (running or connection.run(*asleep))
        await bus.publish(Envelope(type="Job"))


async def test_the_loop_stops_watching_a_socket_that_is_closed_while_statements_are_sent(dsn: str) -> None:
    async with open_bus(dsn, JOBS, connections=1) as bus:
        async with bus.pool.connection() as connection:
            # The text does not fit into the buffers of the socket, so sending it again meets the end of the session.
            texts: list[Call] = [("SELECT %(text)s::text", {"text": "x" * 20_000_000})] * 2
            await connection.run(*texts)
            socket = connection.pgconn.socket
            # Nothing is awaited here, so the event loop cannot notice the end of the session earlier.
            with psycopg.connect(dsn) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
            with pytest.raises(psycopg.OperationalError):
                await connection.run(*texts)
            assert not asyncio.get_running_loop().remove_reader(socket)
        await bus.publish(Envelope(type="Job"))
