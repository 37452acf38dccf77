"""Faults of the store: refusals that are no outage, swallowed errors, missing rows, partitions and privileges."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dispatcher, Envelope, Event, RecordQuery, RetryPolicy, Topology, Transaction
from kingdom.bus.operations import Retention
from kingdom.clock import utc_now
from kingdom.errors import KingdomError, Misconfigured, Transient
from tests.integration.running import at_work, event, eventually, numbered, open_bus, rows, statuses, stream, until_all

TWICE = RetryPolicy(base=timedelta(milliseconds=10), max_attempts=2)


async def test_an_event_whose_reaction_writes_unstorable_data_ends_dead_and_its_neighbors_are_done(
    dsn: str,
) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Work")
    async def work(received: Event[dict[str, Any]], transaction: Transaction) -> None:
        if received.payload["n"] == 3:
            await transaction.publish(Envelope(type="Step", partition_key="x" * 50_000_000))

    line = stream("line", "Step", ordered=True)
    async with open_bus(dsn, stream("work", "Work", retry=TWICE), line) as bus:
        await bus.publish(*numbered("Work", 6))
        async with at_work(bus, dispatcher, "work"):

            async def ended() -> bool:
                return await statuses(bus) == {"DONE": 5, "DEAD": 1}

            await eventually(ended)


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "x" * 100_000])
async def test_an_error_with_any_text_is_stored_and_does_not_affect_other_events(dsn: str, text: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Work")
    async def work(received: Event[dict[str, Any]], _transaction: Transaction) -> None:
        if received.payload["n"] == 3:
            raise ValueError(text)

    envelopes = numbered("Work", 6)
    async with open_bus(dsn, stream("work", "Work", retry=TWICE)) as bus:
        await bus.publish(*envelopes)
        async with at_work(bus, dispatcher):

            async def ended() -> bool:
                return await statuses(bus) == {"DONE": 5, "DEAD": 1}

            await eventually(ended)
        dead = await event(bus, envelopes[3])
        assert dead["last_error_message"].startswith("ValueError: ")
        assert dead["attempt_count"] == 2
        crashed = await rows(bus, "SELECT 1 FROM kingdom.outbox_all WHERE crash_count > 0")
        assert not crashed


async def test_a_cancelled_event_that_is_given_back_does_not_run_again(dsn: str) -> None:
    dispatcher, runs, go_on = Dispatcher(), 0, asyncio.Event()

    @dispatcher.reaction("Work")
    async def work(_received: Event[dict[str, Any]], _transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()
        raise Transient("not now", after=timedelta(0))

    envelope = Envelope(type="Work")
    async with open_bus(dsn, stream("work", "Work")) as bus:
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):

            async def running() -> bool:
                return runs == 1

            await eventually(running)
            assert await PostgresOperations(bus).cancel(envelope.event_id, "work", actor="tester") == "requested"
            go_on.set()
            await until_all(bus, "DEAD", 1)
        assert (await event(bus, envelope))["last_error_code"] == "cancelled"
    assert runs == 1


async def test_leases_without_events_do_not_delay_the_reaper(dsn: str) -> None:
    async with open_bus(dsn, stream("work", "Work")) as bus:
        await rows(
            bus,
            "INSERT INTO kingdom.outbox_lease (worker, ids, expires_at)"
            " SELECT 'gone', '{0}', now() - interval '1 hour' FROM generate_series(1, 60) RETURNING token",
        )
        await bus.publish(Envelope(type="Work"))
        await bus.claim("work", 1, "me")
        await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 hour' RETURNING token")
        assert await bus.reap() == 1


async def test_a_transaction_that_swallows_the_failure_of_a_statement_raises_an_error_at_its_end(dsn: str) -> None:
    async with open_bus(dsn, stream("work", "Work")) as bus:

        async def careless() -> None:
            async with bus.transaction() as transaction:
                assert await transaction.once("scope", "key", timedelta(hours=1))
                with pytest.raises(KingdomError):
                    await transaction.find(RecordQuery(kind="mark", limit=2**40))

        with pytest.raises(KingdomError):
            await careless()
        async with bus.transaction() as transaction:
            assert await transaction.once("scope", "key", timedelta(hours=1))


async def test_partitions_are_made_while_events_are_archived(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Work")
    async def work(_received: Event[dict[str, Any]], _transaction: Transaction) -> None:
        return None

    async with open_bus(dsn, stream("work", "Work")) as bus, at_work(bus, dispatcher):
        publishing = True

        async def publish() -> None:
            while publishing:
                await bus.publish(*numbered("Work", 20))

        publisher = asyncio.create_task(publish())
        operations = PostgresOperations(bus)
        try:

            async def made() -> bool:
                await operations.retain(Retention(partitions_ahead_days=1))
                found = await rows(
                    bus, "SELECT 1 FROM pg_inherits WHERE inhparent = 'kingdom.outbox_archive'::regclass"
                )
                return len(found) == 3

            await eventually(made)
        finally:
            publishing = False
            await publisher


async def test_a_role_without_privileges_sees_that_a_transaction_pins_rows(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as owner, psycopg.connect(dsn) as pinning:
        owner.execute("DROP ROLE IF EXISTS plain_reader")
        owner.execute("CREATE ROLE plain_reader LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA kingdom TO plain_reader")
        pinning.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinning.execute("SELECT 1")
        pid = pinning.info.backend_pid
        plain = psycopg.conninfo.make_conninfo(dsn, user="plain_reader")
        async with PostgresBus(plain, Topology([])) as bus:
            pins = await PostgresOperations(bus).pins()
        owner.execute("REVOKE USAGE ON SCHEMA kingdom FROM plain_reader")
        owner.execute("DROP ROLE plain_reader")
    assert any(f"session {pid} " in pin.what for pin in pins)


def test_a_query_by_due_time_cannot_be_paged_by_id() -> None:
    with pytest.raises(Misconfigured):
        RecordQuery(kind="mark", due_by=utc_now(), after="a")
