"""Wake-ups: an idle worker hears of new events long before it would look again."""

from datetime import timedelta

import psycopg

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dispatcher, Envelope, Received, Transaction
from tests.integration.running import at_work, eventually, numbered, open_bus, rows, stream, until_all

# Longer than any test may last: whatever is done was heard of.
NEVER = timedelta(minutes=10)


def dispatcher() -> Dispatcher:
    handlers = Dispatcher()

    @handlers.reaction("Job")
    async def handle(_received: Received[dict[str, int]], _transaction: Transaction) -> None:
        """Do nothing."""

    return handlers


async def listeners(bus: PostgresBus) -> list[int]:
    found = await rows(
        bus,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
        " AND state = 'idle'",
    )
    return [row["pid"] for row in found]


async def listening(bus: PostgresBus) -> int:
    async def one_listens() -> bool:
        return len(await listeners(bus)) == 1

    await eventually(one_listens)
    return (await listeners(bus))[0]


async def test_a_publish_elsewhere_wakes_an_idle_worker(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(dsn, jobs) as elsewhere, at_work(bus, dispatcher(), poll=NEVER):
        await listening(elsewhere)
        await elsewhere.publish(Envelope(type="Job"))
        await until_all(elsewhere, "DONE", 1)


async def test_wake_ups_work_again_after_the_listening_connection_was_terminated(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(dsn, jobs) as elsewhere, at_work(bus, dispatcher(), poll=NEVER):
        first = await listening(elsewhere)
        await rows(elsewhere, "SELECT pg_terminate_backend(%s)", first)

        async def another_listens() -> bool:
            return await listeners(elsewhere) not in ([], [first])

        await eventually(another_listens)
        await elsewhere.publish(Envelope(type="Job"))
        await until_all(elsewhere, "DONE", 1)


async def test_polling_alone_is_enough(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, at_work(bus, dispatcher(), poll=timedelta(milliseconds=50)):
        # Straight into the table: nobody is told.
        async with await psycopg.AsyncConnection.connect(dsn) as connection, bus.join(connection) as transaction:
            await transaction.publish(Envelope(type="Job"))
        await until_all(bus, "DONE", 1)


async def test_a_joined_publish_wakes_by_a_nudge_after_its_commit(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(dsn, jobs) as elsewhere, at_work(bus, dispatcher(), poll=NEVER):
        await listening(elsewhere)
        connect = psycopg.AsyncConnection.connect(dsn)
        async with await connect as connection, elsewhere.join(connection) as transaction:
            await transaction.publish(Envelope(type="Job"))
        elsewhere.nudge(["jobs"])
        await until_all(elsewhere, "DONE", 1)


async def test_resuming_a_paused_stream_wakes_its_workers(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(dsn, jobs) as elsewhere:
        operations = PostgresOperations(elsewhere)
        await operations.pause("jobs", reason="test", actor="test")
        async with at_work(bus, dispatcher(), poll=NEVER):
            await listening(elsewhere)
            await elsewhere.publish(Envelope(type="Job"))
            await operations.resume("jobs", actor="test")
            await until_all(elsewhere, "DONE", 1)


async def test_a_burst_of_publishes_sends_few_notices(dsn: str) -> None:
    notices = list[str]()
    async with (
        open_bus(dsn, stream("jobs", "Job"), stream("other", "Other")) as bus,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as ear,
    ):
        await ear.execute('LISTEN "kingdom_kingdom"')
        for envelope in numbered("Job", 200):
            await bus.publish(envelope)
        await bus.publish(Envelope(type="Other"))
        async for notice in ear.notifies(timeout=30):
            notices.append(notice.payload)
            if notice.payload == "other":
                break
    assert notices[-1] == "other"
    assert set(notices) == {"jobs", "other"}
    assert len(notices) < 150
