"""Wake-ups: an idle worker gets new events long before it would poll again."""

import asyncio
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.backends.postgres.wakeup import PostgresWakeups
from kingdom.bus import Dispatcher, Envelope, Event, Transaction
from tests.integration.running import at_work, eventually, open_bus, rows, stream, until_all
from tests.patience import PATIENCE_SECONDS

# Longer than any test, so that only a wake-up can start work.
NEVER = timedelta(minutes=10)


def dispatcher() -> Dispatcher:
    handlers = Dispatcher()

    @handlers.reaction("Job")
    async def handle(_received: Event[dict[str, int]], _transaction: Transaction) -> None:
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


async def test_the_first_publish_after_a_pause_includes_its_wake_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresWakeups, "_send_soon", _never)
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(dsn, jobs) as elsewhere, at_work(bus, dispatcher(), poll=NEVER):
        await listening(elsewhere)
        await elsewhere.publish(Envelope(type="Job"))
        await until_all(elsewhere, "DONE", 1)


async def test_a_publish_without_a_local_worker_includes_its_hints_unless_some_were_just_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakeups = PostgresWakeups("ears", _send_nothing, None)
    monkeypatch.setattr("kingdom.backends.postgres.wakeup._COALESCE_SECONDS", NEVER.total_seconds())
    assert wakeups.take_hints({"jobs"}, events=1) == {"jobs"}
    wakeups.wake_workers({"jobs"}, events=1, sent={"jobs"})
    assert wakeups.take_hints({"jobs"}, events=1) == set()
    monkeypatch.setattr("kingdom.backends.postgres.wakeup._COALESCE_SECONDS", 0)
    assert wakeups.take_hints({"jobs"}, events=1) == {"jobs"}
    # The first wait takes the hint, and the second one waits.
    await wakeups.wait({"jobs"}, NEVER)
    await wakeups.wait({"jobs"}, timedelta(0))
    assert wakeups.take_hints({"jobs"}, events=1) == set()
    assert wakeups.take_hints({"jobs"}, events=2) == {"jobs"}
    await wakeups.close()


async def test_hints_of_earlier_publishes_are_sent_once_and_those_of_later_ones_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[str]] = []

    async def send(streams: list[str]) -> None:
        sent.append(streams)

    monkeypatch.setattr("kingdom.backends.postgres.wakeup._COALESCE_SECONDS", 0)
    monkeypatch.setattr("kingdom.backends.postgres.wakeup._SEND_ALONE_SECONDS", 0)
    wakeups = PostgresWakeups("ears", send, None)
    wakeups.wake_workers({"jobs"}, events=1)
    # A publish includes the hints before the task that sends hints has run.
    assert wakeups.take_hints({"jobs"}, events=1) == {"jobs"}
    # Another task commits between the NOTIFY and its answer.
    wakeups.wake_workers({"mails"}, events=1)
    wakeups.wake_workers({"jobs"}, events=1, sent={"jobs"})
    await wakeups.close()
    assert sent == [["mails"]]
    wakeups.take_hints({"jobs"}, events=1)
    wakeups.wake_workers({"jobs"}, events=1)
    wakeups.wake_workers({"jobs"}, events=1, sent={"jobs"})
    await wakeups.close()
    assert sent == [["mails"], ["jobs"]]


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


async def test_a_notice_that_is_not_text_does_not_end_the_listener(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingdom.backends.postgres.wakeup._RECONNECT_SECONDS", 0.01)
    raw = make_conninfo(dsn, dbname="raw")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as owner:
        await owner.execute("CREATE DATABASE raw ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        wakeups = PostgresWakeups("ears", _send_nothing, raw)
        async with (
            await psycopg.AsyncConnection.connect(raw, autocommit=True) as elsewhere,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            await wakeups.wait(["jobs"], NEVER)
            waiting = asyncio.create_task(wakeups.wait(["jobs"], NEVER))
            # The hint after reconnecting wakes all current waiters.
            await asyncio.sleep(0)
            await elsewhere.execute(r"SELECT pg_notify('ears', convert_from('\xff', 'SQL_ASCII'))")
            await waiting
            await elsewhere.execute("NOTIFY ears, 'jobs'")
            await wakeups.wait(["jobs"], NEVER)
        await wakeups.close()
        await owner.execute("DROP DATABASE raw WITH (FORCE)")


async def _never(_wakeups: PostgresWakeups) -> None:
    """Send no hint after a transaction."""


async def _send_nothing(_streams: list[str]) -> None:
    """Send no hint."""


async def test_a_worker_finds_events_by_polling_if_no_wake_up_arrives(dsn: str) -> None:
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, at_work(bus, dispatcher(), poll=timedelta(milliseconds=50)):
        # Directly into the table, without a hint.
        async with await psycopg.AsyncConnection.connect(dsn) as connection, bus.join(connection) as transaction:
            await transaction.publish(Envelope(type="Job"))
        await until_all(bus, "DONE", 1)


async def test_a_nudge_wakes_workers_for_a_publish_in_a_joined_transaction(dsn: str) -> None:
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
