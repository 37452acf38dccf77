"""The bus through PgBouncer in transaction mode, where a session lasts only for one transaction."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateBouncer, PrivateCluster
from kingdom.backends.postgres import PostgresBus, PostgresOperations, migrate
from kingdom.backends.postgres.schema import all_migrations
from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dead,
    Dispatcher,
    Done,
    Envelope,
    Event,
    LogCursor,
    LogEntry,
    Record,
    Retry,
    Stream,
    Transaction,
)
from kingdom.bus.operations import DeadFilter
from kingdom.errors import Conflict, LeaseLost, Unavailable
from tests.contract.complete_log import CompleteLogOperations
from tests.integration.local_effect import LocalEffect
from tests.integration.running import at_work, event, eventually, numbered, open_bus, rows, statuses, stream, until_all
from tests.patience import PATIENCE_SECONDS

NEVER = timedelta(minutes=10)
JOBS, STEPS = stream("jobs", "Job", "Call"), stream("steps", "Step", ordered=True)


@pytest.fixture(scope="module")
def bouncer(cluster: PrivateCluster) -> Iterator[PrivateBouncer]:
    # Few server connections, so that clients share them all the time.
    with PrivateBouncer(cluster.dsn, pool_size=3) as bouncer:
        yield bouncer


@pytest.fixture
def pooled(bouncer: PrivateBouncer, dsn: str) -> str:
    return bouncer.dsn(str(conninfo_to_dict(dsn)["dbname"]))


@asynccontextmanager
async def through(pooled: str, *streams: Stream, **options: Any) -> AsyncIterator[PostgresBus]:
    async with open_bus(pooled, *(streams or (JOBS, STEPS)), through_pgbouncer=True, **options) as bus:
        yield bus


def recording(**payloads: Any) -> Dispatcher:
    """Return handlers that log every event in the transaction that settles it."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        data = {**received.payload, **payloads, "key": received.envelope.partition_key}
        await transaction.append(LogEntry(type="handled", actor="test", data=data))

    return dispatcher


@pytest.mark.parametrize("count", [1, 100, 2500], ids=["single", "batched", "copied"])
async def test_publishing_reports_duplicates_and_loses_nothing(pooled: str, count: int) -> None:
    async with through(pooled) as bus:
        envelopes = numbered("Job", count)
        assert await bus.publish(*envelopes) == ()
        again = await bus.publish(*envelopes, Envelope(type="Job"))
        assert len(again) == count
        assert await statuses(bus) == {"PENDING": count + 1}


async def test_copies_of_many_publishers_do_not_mix(pooled: str) -> None:
    async with through(pooled) as one, through(pooled) as other:
        batches = [numbered("Job", 1200, owner_id=str(number)) for number in range(6)]
        buses = (one, other) * 3
        await asyncio.gather(*(bus.publish(*batch) for bus, batch in zip(buses, batches, strict=True)))
        found = await rows(one, "SELECT owner_id, count(*) AS n FROM kingdom.outbox_event GROUP BY 1 ORDER BY 1")
    assert [(row["owner_id"], row["n"]) for row in found] == [(str(number), 1200) for number in range(6)]


async def test_a_worker_handles_reactions_effects_and_ordered_events(pooled: str) -> None:
    called = list[int]()

    async def call(attempt: Attempt) -> CallResult:
        called.append(attempt.request["n"])
        return Acked()

    dispatcher = recording()
    dispatcher.effect("Call", LocalEffect(call))
    async with through(pooled) as bus:
        await bus.publish(*numbered("Job", 200), *numbered("Call", 20))
        for n in range(10):
            await bus.publish(*(Envelope(type="Step", payload={"n": n}, partition_key=key) for key in "abc"))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 250)
        handled = await rows(bus, "SELECT data FROM kingdom.log ORDER BY seq")
        attempts = await rows(bus, "SELECT DISTINCT attempt_count AS n FROM kingdom.outbox_archive")
        assert await rows(bus, "SELECT DISTINCT state FROM kingdom.record") == [{"state": "ACKED"}]
    found = [row["data"] for row in handled]
    assert sorted(data["n"] for data in found if data["key"] is None) == list(range(200))
    for key in "abc":
        assert [data["n"] for data in found if data["key"] == key] == list(range(10))
    assert sorted(called) == list(range(20))
    assert attempts == [{"n": 1}]


@pytest.mark.usefixtures("renewed_early")
async def test_a_lease_is_renewed_and_an_expired_one_is_reaped(pooled: str) -> None:
    inside, over = asyncio.Event(), asyncio.Event()

    async def call(_attempt: Attempt) -> CallResult:
        inside.set()
        await over.wait()
        return Acked()

    dispatcher = Dispatcher()
    dispatcher.effect("Call", LocalEffect(call))
    async with through(pooled) as bus, through(pooled) as other:
        envelope = Envelope(type="Call")
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await inside.wait()
            ends = set[datetime]()

            async def renewed_twice() -> bool:
                assert await other.reap() == 0
                ends.add((await event(bus, envelope))["locked_until"])
                return len(ends) == 3

            await eventually(renewed_twice)
            over.set()
            await until_all(bus, "DONE", 1)
        assert (await event(bus, envelope))["attempt_count"] == 1

        await bus.publish(Envelope(type="Call"))
        (lost,) = await other.claim("jobs", 1, "a worker that dies")
        await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 second'")
        assert await bus.reap() == 1
        with pytest.raises(LeaseLost):
            async with other.transaction(hold=[lost]) as transaction:
                await transaction.settle(lost, Done())


async def test_settlements_records_and_the_log_are_one_transaction(pooled: str) -> None:
    async with through(pooled) as bus:
        await bus.publish(*numbered("Job", 3))
        first, second, third = await bus.claim("jobs", 3, "test")
        async with bus.transaction(hold=[first, second]) as transaction:
            assert await transaction.once("scope", "key", NEVER)
            await transaction.settle(first, Done())
            await transaction.settle(second, Retry(NEVER))
            await transaction.put(Record(kind="mark", id="1", state="made"))
            await transaction.append(LogEntry(type="noted", actor="test"))

        async def repeat() -> None:
            async with bus.transaction() as transaction:
                await transaction.settle(third, Dead("no"))
                await transaction.put(Record(kind="mark", id="1", state="made"))

        with pytest.raises(Conflict):
            await repeat()
        assert await statuses(bus) == {"DONE": 1, "PENDING": 1, "PROCESSING": 1}
        assert len(await CompleteLogOperations(bus).read_log(LogCursor(), 10)) == 1


async def test_operators_can_inspect_and_repair(pooled: str) -> None:
    async with through(pooled) as bus:
        operations = PostgresOperations(bus)
        await bus.publish(*numbered("Step", 2, partition_key="k"))
        (head, _) = await bus.claim("steps", 10, "test")
        async with bus.transaction() as transaction:
            await transaction.settle(head, Dead("no"))
        await operations.pause("steps", reason="test", actor="test")
        (stats,) = await operations.stats()
        assert (stats.dead, stats.pending, stats.paused) == (1, 1, "test")
        (letter,) = await operations.dead_letters(DeadFilter(), 10)
        assert await operations.redrive([letter.position], actor="test") == [letter.event_id]
        await operations.resume("steps", actor="test")
        async with at_work(bus, recording()):
            await until_all(bus, "DONE", 2)


async def test_a_worker_without_wake_ups_finds_events_by_polling(pooled: str, dsn: str) -> None:
    async with through(pooled) as bus:
        async with at_work(bus, recording(), poll=timedelta(milliseconds=50)):
            await bus.publish(*numbered("Job", 3))
            await until_all(bus, "DONE", 3)
        assert await listening(dsn) == 0


async def test_a_direct_connection_to_the_server_brings_wake_ups(pooled: str, dsn: str) -> None:
    async def is_listening() -> bool:
        return await listening(dsn) == 1

    async with (
        through(pooled, listen_dsn=dsn) as bus,
        through(pooled) as elsewhere,
        at_work(bus, recording(), poll=NEVER),
    ):
        await eventually(is_listening)
        await elsewhere.publish(Envelope(type="Job", payload={"n": 1}))
        await until_all(elsewhere, "DONE", 1)


async def listening(dsn: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return len(await cursor.fetchall())


async def test_an_idle_transaction_is_ended_and_releases_its_rows(pooled: str, dsn: str) -> None:
    async with through(pooled) as bus:
        await bus.publish(Envelope(type="Job"))
        (delivery,) = await bus.claim("jobs", 1, "test")
    async with through(pooled, idle_limit=timedelta(milliseconds=300)) as bus:

        async def stall() -> None:
            async with bus.transaction(hold=[delivery]) as transaction:
                assert transaction.held
                await eventually(nobody_idles)
                await transaction.settle(delivery, Done())

        async def nobody_idles() -> bool:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                cursor = await connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND state = 'idle in transaction'"
                )
                return not await cursor.fetchall()

        with pytest.raises(Unavailable):
            await stall()
    async with through(pooled) as bus:
        async with bus.transaction(hold=[delivery]) as transaction:
            await transaction.settle(delivery, Done())
        assert await statuses(bus) == {"DONE": 1}


async def test_a_session_that_others_use_next_has_no_settings_statements_or_locks_of_ours(
    cluster: PrivateCluster, dsn: str
) -> None:
    with PrivateBouncer(cluster.dsn, pool_size=1) as narrow:
        pooled = narrow.dsn(str(conninfo_to_dict(dsn)["dbname"]))
        async with through(pooled, idle_limit=timedelta(seconds=7)) as bus:
            await bus.publish(*numbered("Job", 5))
            async with at_work(bus, recording()):
                await until_all(bus, "DONE", 5)
        async with await psycopg.AsyncConnection.connect(pooled, prepare_threshold=None) as stranger:
            for setting, value in (("idle_in_transaction_session_timeout", "0"), ("plan_cache_mode", "auto")):
                cursor = await stranger.execute("SELECT current_setting(%s)", (setting,))
                assert await cursor.fetchone() == (value,)
            cursor = await stranger.execute("SELECT count(*) FROM pg_prepared_statements")
            assert await cursor.fetchone() == (0,)
            cursor = await stranger.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert await cursor.fetchone() == (0,)


async def test_concurrent_migrations_leave_no_lock(cluster: PrivateCluster, bouncer: PrivateBouncer) -> None:
    direct = cluster.create_database("bounced")
    try:
        pooled = bouncer.dsn("bounced")
        applied = await asyncio.wait_for(asyncio.gather(*(migrate(pooled) for _ in range(6))), PATIENCE_SECONDS)
        async with await psycopg.AsyncConnection.connect(direct) as connection:
            cursor = await connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert await cursor.fetchone() == (0,)
        # Each migration is a separate transaction, so callers can share the work, but none is applied twice.
        each_once = sorted(chain.from_iterable(applied), key=lambda migration: migration.number)
        assert each_once == all_migrations()
    finally:
        cluster.drop_database("bounced")
