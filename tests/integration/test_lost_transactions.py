"""The server loses confirmed transactions: their events run again, none is stuck, and no stale holder can settle."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.bus import Delivery, Done, Envelope, LogCursor, Stream
from kingdom.bus.log import LOST_TRANSACTIONS
from kingdom.bus.outcome import Dead, Release, Retry
from kingdom.errors import LeaseLost
from tests.contract.complete_log import CompleteLogOperations
from tests.integration.running import HOUR, eventually, open_bus, rows, statuses, stream

JOBS, LINE = stream("jobs", "Job"), stream("line", "Step", ordered=True)
TABLES = ("outbox_event", "outbox_lease", "outbox_key", "outbox_archive", "log")
BOTH = pytest.mark.parametrize("declared", [JOBS, LINE], ids=["jobs", "line"])


class Standby:
    """An asynchronous standby of a database, and the failover to it."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("CREATE SCHEMA past")

    def fall_behind(self) -> None:
        """Copy everything that is committed now. Later transactions do not reach the standby."""
        for table in TABLES:
            self._run("CREATE TABLE past.{table} AS TABLE kingdom.{table}", table)
        self._connection.execute("CREATE TABLE past.number AS SELECT * FROM kingdom.outbox_lease_number")

    def promote(self) -> None:
        """Restore that copy. No session survives it."""
        self._connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in TABLES:
            self._run("TRUNCATE kingdom.{table}", table)
            self._run("INSERT INTO kingdom.{table} OVERRIDING SYSTEM VALUE TABLE past.{table}", table)
        self._connection.execute("SELECT setval('kingdom.outbox_lease_number', last_value, is_called) FROM past.number")

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: Any, table: str) -> None:
        self._connection.execute(sql.SQL(statement).format(table=sql.Identifier(table)))


@pytest.fixture
def standby(dsn: str) -> Iterator[Standby]:
    standby = Standby(dsn)
    yield standby
    standby.close()


def events(count: int) -> list[Envelope]:
    """Return events of one key that both streams subscribe to."""
    return [Envelope(type=kind, partition_key="key") for _ in range(count) for kind in ("Job", "Step")]


async def settle(bus: PostgresBus, *deliveries: Delivery) -> None:
    async with bus.transaction(hold=deliveries) as transaction:
        for delivery in deliveries:
            await transaction.settle(delivery, Done())


async def replace_broken_connections(bus: PostgresBus) -> None:
    async def nobody_has_one() -> bool:
        stats = bus.pool.get_stats()
        return stats["pool_available"] + (bus.pool._at_hand is not None) == stats["pool_size"]

    # A wake-up at this moment would return a broken connection to the pool later.
    await eventually(nobody_has_one)
    await bus.pool.check()


async def claim(bus: PostgresBus, declared: Stream, limit: int = 10) -> list[Delivery]:
    """Replace broken connections, and claim."""
    await replace_broken_connections(bus)
    bus._paces.clear()
    return await bus.claim(declared.name, limit, "test")


async def claim_and_release(bus: PostgresBus) -> int:
    """Claim and release the only job, and return the token."""
    (delivery,) = await claim(bus, JOBS)
    async with bus.transaction() as transaction:
        await transaction.settle(delivery, Release())
    return delivery.token


async def settled_alone(bus: PostgresBus) -> int:
    """Handle the only due event and return its position."""
    (delivery,) = await claim(bus, LINE)
    await settle(bus, delivery)
    return delivery.position


async def lose_leases(bus: PostgresBus) -> int:
    await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 s'")
    bus._next_full_reap = 0
    return await bus.reap()


async def finish(bus: PostgresBus, declared: Stream) -> int:
    count = 0
    while claimed := await claim(bus, declared):
        await settle(bus, *claimed)
        count += len(claimed)
    return count


@BOTH
@pytest.mark.parametrize("survive", [1, 3])
async def test_events_whose_settlement_was_lost_return_with_their_lease(
    dsn: str, standby: Standby, declared: Stream, survive: int
) -> None:
    async with open_bus(dsn, JOBS, LINE) as bus:
        await bus.publish(*events(6))
        claimed = await claim(bus, declared)
        for number in range(3):
            if number == survive:
                standby.fall_behind()
            await settle(bus, *claimed[2 * number : 2 * number + 2])
        if survive == 3:
            standby.fall_behind()
        standby.promote()
        # This closes the lease, unless one of its events is still in flight.
        assert await claim(bus, declared) == []
        assert len(await rows(bus, "SELECT 1 FROM kingdom.outbox_lease")) == (survive < 3)
        assert await lose_leases(bus) == 6 - 2 * survive
        assert await finish(bus, declared) == 6 - 2 * survive
        assert (await statuses(bus))["DONE"] == 6


async def test_a_process_that_ends_does_not_close_a_lease_whose_settlements_were_lost(
    dsn: str, standby: Standby
) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(Envelope(type="Job"))
        (delivery,) = await claim(bus, JOBS)
        standby.fall_behind()
        await settle(bus, delivery)
        standby.promote()
        await replace_broken_connections(bus)
        assert (await statuses(bus))["PROCESSING"] == 1
    async with open_bus(dsn, JOBS) as other:
        assert await lose_leases(other) == 1


async def test_a_holder_whose_lease_was_lost_is_not_accepted_under_the_next_one(dsn: str, standby: Standby) -> None:
    async with open_bus(dsn, JOBS) as stale, open_bus(dsn, JOBS) as owner:
        await stale.publish(Envelope(type="Job"))
        standby.fall_behind()
        (lost,) = await claim(stale, JOBS)
        standby.promote()
        (kept,) = await claim(owner, JOBS)
        assert kept.position == lost.position
        await replace_broken_connections(stale)
        stale._renewals.close()
        assert stale.renew({lost.token: HOUR}).alive == set()
        with pytest.raises(LeaseLost):
            async with stale.transaction() as transaction:
                await transaction.settle(lost, Done())
        await settle(owner, kept)
        assert await statuses(owner) == {"DONE": 1}


async def test_new_tokens_are_higher_than_all_that_the_process_has_seen(dsn: str, standby: Standby) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(Envelope(type="Job"))
        standby.fall_behind()
        seen = 0
        for _ in range(5):
            seen = await claim_and_release(bus)
        standby.promote()
        (again,) = await claim(bus, JOBS)
        assert again.token > seen
        assert again.attempt == 1
        entries = await CompleteLogOperations(bus).read_log(LogCursor(), 10)
        logged = [(entry.entry.type, entry.entry.aggregate_id) for entry in entries]
        assert logged == [("store.transactions_lost", LOST_TRANSACTIONS)]
        await settle(bus, again)


async def test_a_failover_that_a_pooler_hides_is_noticed_by_the_next_claim(
    dsn: str, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(Envelope(type="Job"))
        await claim_and_release(bus)
        standby.fall_behind()
        await claim_and_release(bus)
        seen = await claim_and_release(bus)
        standby.promote()
        monkeypatch.setattr(Connection, "has_raised_tokens", True)
        assert await claim(bus, JOBS) == []
        (again,) = await claim(bus, JOBS)
        assert again.token > seen
        assert again.attempt == 1


async def test_a_process_that_has_seen_no_token_gets_a_higher_one_than_those_that_were_lost(
    dsn: str, standby: Standby
) -> None:
    async with open_bus(dsn, JOBS) as bus:
        await bus.publish(Envelope(type="Job"))
        standby.fall_behind()
        lost = await claim_and_release(bus)
    standby.promote()
    async with open_bus(dsn, JOBS) as other:
        (delivery,) = await claim(other, JOBS)
        assert lost < delivery.token < 2**53


async def test_an_event_is_not_handled_before_one_of_its_key_whose_settlement_was_lost(
    dsn: str, standby: Standby
) -> None:
    async with open_bus(dsn, LINE) as bus:
        await bus.publish(*(Envelope(type="Step", partition_key="key") for _ in range(3)))
        first, *others = await claim(bus, LINE)
        standby.fall_behind()
        await settle(bus, first)
        standby.promote()
        await replace_broken_connections(bus)
        async with bus.transaction(hold=others) as transaction:
            assert transaction.held == ()
        for outcome in (Done(), Dead("no"), Retry()):
            with pytest.raises(LeaseLost):
                async with bus.transaction() as transaction:
                    await transaction.settle(others[0], outcome)
        assert await lose_leases(bus) == 3
        order = [await settled_alone(bus) for _ in range(3)]
        assert order == [first.position, *(other.position for other in others)]


@BOTH
async def test_events_in_flight_without_a_lease_are_found_and_return_in_their_order(dsn: str, declared: Stream) -> None:
    async with open_bus(dsn, JOBS, LINE) as bus:
        await bus.publish(*events(6))
        first = await claim(bus, declared)
        await rows(bus, "DELETE FROM kingdom.outbox_lease")
        bus._next_full_reap = 0
        assert await bus.reap() == 6
        again = await claim(bus, declared)
        assert [delivery.position for delivery in again] == [delivery.position for delivery in first]
        await settle(bus, *again)
