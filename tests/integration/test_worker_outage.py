"""A store becomes unreachable while a real worker uses it."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from bench.postgres import PrivateCluster
from kingdom.backends.postgres import PostgresBus, migrate
from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Envelope,
    Event,
    LogEntry,
    Present,
    ReconcileResult,
    Transaction,
)
from kingdom.errors import Unavailable
from tests.integration.local_effect import LocalEffect
from tests.integration.running import at_work, event, eventually, numbered, open_bus, rows, stream, until_all
from tests.patience import PATIENCE_SECONDS

# The limit until the first event is handled, after an outage of any length.
BACK_AT_WORK_SECONDS = 5.0


class Server:
    """A private cluster that can be stopped and started again at the same address."""

    def __init__(self, cluster: PrivateCluster) -> None:
        cluster.create_database("restarted")
        # The timeouts of the product, not the longer ones of tests.
        self.dsn = make_conninfo(cluster.dsn, dbname="restarted")
        self._cluster = cluster

    def stop(self) -> None:
        self._cluster.crash(signal.SIGQUIT)

    def start(self) -> None:
        self._cluster.restart()


@pytest.fixture
def server() -> Iterator[Server]:
    # The server of DATABASE_URL is not ours to stop.
    with PrivateCluster(shared_buffers="16MB", ignore_database_url=True) as cluster:
        yield Server(cluster)


class Pause:
    """A point at which handlers wait until the test lets them continue."""

    def __init__(self) -> None:
        self.reached: list[object] = []
        self.cut_off = 0
        self.over = asyncio.Event()

    async def here(self, who: object) -> None:
        self.reached.append(who)
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.cut_off += 1
            raise


async def test_a_restart_of_the_server_costs_no_attempt_and_loses_nothing(server: Server) -> None:
    await migrate(server.dsn)
    dispatcher, pause = Dispatcher(), Pause()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await transaction.append(LogEntry(type="handled", actor="test", data=received.payload))
        await pause.here("reaction")

    async def call(_attempt: Attempt) -> CallResult:
        await pause.here("call")
        return Acked()

    dispatcher.effect("Call", LocalEffect(call))
    async with open_bus(server.dsn, stream("jobs", "Job", "Call")) as bus:
        await bus.publish(Envelope(type="Job"), Envelope(type="Call"))
        async with at_work(bus, dispatcher):
            await eventually(lambda: _both_reached(pause))
            await asyncio.to_thread(server.stop)
            pause.over.set()
            await asyncio.to_thread(server.start)
            await until_done(server.dsn, 2)
            await bus.publish(*numbered("Job", 20))
            await until_done(server.dsn, 22)
        attempts = await rows(bus, "SELECT DISTINCT attempt_count AS n FROM kingdom.outbox_archive")
        records = await rows(bus, "SELECT state, jsonb_array_length(doc->'attempts') AS n FROM kingdom.record")
        handled = await rows(bus, "SELECT count(*) AS n FROM kingdom.log")
    assert pause.reached.count("call") == 1
    assert attempts == [{"n": 1}]
    assert records == [{"state": "ACKED", "n": 1}]
    assert handled == [{"n": 21}]


async def test_an_outage_longer_than_the_lease_cancels_handlers_and_the_event_is_handled_again(
    server: Server, given_up: set[int]
) -> None:
    await migrate(server.dsn)
    dispatcher, pause = Dispatcher(), Pause()

    async def call(_attempt: Attempt) -> CallResult:
        await pause.here("call")
        return Acked()

    async def reconcile_as_present(attempt: Attempt) -> ReconcileResult:
        return Present({"found": attempt.identifier})

    dispatcher.effect("Job", LocalEffect(call, reconcile_as_present))
    async with open_bus(server.dsn, stream("jobs", "Job")) as bus:
        envelope = Envelope(type="Job")
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await eventually(lambda: _reached(pause))
            (lease,) = await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() RETURNING token")
            await asyncio.to_thread(server.stop)
            given_up.add(lease["token"])
            await eventually(lambda: _cut_off(pause))
            await asyncio.to_thread(server.start)
            await eventually(lambda: _reaped(bus))
            await until_done(server.dsn, 1)
        assert (await event(bus, envelope))["attempt_count"] == 2
    assert pause.reached == ["call"]


@pytest.mark.timing
# If the wait doubled without a limit, the worker would be in a wait of half a minute after 35 seconds.
@pytest.mark.parametrize("outage_seconds", [5, 35, 60])
async def test_the_first_event_is_handled_soon_after_the_server_is_back_however_long_it_was_away(
    server: Server, outage_seconds: int
) -> None:
    await migrate(server.dsn)
    dispatcher, handled = Dispatcher(), asyncio.Event()

    @dispatcher.reaction("Job")
    async def handle(_received: Event[dict[str, int]], _transaction: Transaction) -> None:
        handled.set()

    async with open_bus(server.dsn, stream("jobs", "Job")) as bus, at_work(bus, dispatcher):
        await bus.publish(Envelope(type="Job"))
        await until_done(server.dsn, 1)
        handled.clear()
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(outage_seconds)
        await asyncio.to_thread(server.start)
        back = time.monotonic()
        async with open_bus(server.dsn, stream("jobs", "Job")) as publisher:
            await publisher.publish(Envelope(type="Job"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await handled.wait()
        assert time.monotonic() - back < BACK_AT_WORK_SECONDS


async def test_terminated_connections_lose_nothing_and_repeat_nothing(dsn: str) -> None:
    dispatcher, count = Dispatcher(), 300

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await asyncio.sleep(0.002)
        await transaction.append(LogEntry(type="handled", actor="test", data=received.payload))

    observer = make_conninfo(dsn, application_name="observer")
    async with open_bus(observer, stream("jobs", "Job")) as quiet, open_bus(dsn, stream("jobs", "Job")) as bus:
        await quiet.publish(*numbered("Job", count))
        async with at_work(bus, dispatcher, batch=20):
            for minimum in range(0, 250, 50):

                async def further(minimum: int = minimum) -> bool:
                    return len(await rows(quiet, "SELECT seq FROM kingdom.log")) >= minimum

                async def terminated() -> bool:
                    return bool(
                        await rows(
                            quiet,
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                            " AND application_name <> 'observer' AND backend_type = 'client backend'",
                        )
                    )

                await eventually(further)
                await eventually(terminated)
            await until_all(quiet, "DONE", count)
        handled = await rows(quiet, "SELECT data->>'n' AS n FROM kingdom.log")
    assert sorted(int(row["n"]) for row in handled) == list(range(count))


async def until_done(dsn: str, count: int) -> None:
    """Wait for this many archived events, on connections of its own: the bus may still have broken ones."""

    async def reached() -> bool:
        with suppress(psycopg.OperationalError):
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                cursor = await connection.execute("SELECT count(*) FROM kingdom.outbox_archive")
                return await cursor.fetchone() == (count,)
        return False

    await eventually(reached)


async def _reaped(bus: PostgresBus) -> bool:
    with suppress(Unavailable):
        return await bus.reap() > 0
    return False


async def _reached(pause: Pause) -> bool:
    return bool(pause.reached)


async def _both_reached(pause: Pause) -> bool:
    return {"reaction", "call"} <= set(pause.reached)


async def _cut_off(pause: Pause) -> bool:
    return pause.cut_off > 0
