"""The temporary store of `kingdom bus verify`: its checks must find every inconsistency."""

from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from kingdom.backends.postgres import PostgresBus, PostgresTrialStore
from kingdom.bus import Dead, Done, Envelope, LogEntry
from kingdom.errors import Unavailable
from kingdom.verify.workload import ANY, LINE, topology

SCHEMA = "kingdom_verify_test"


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresTrialStore]:
    store = PostgresTrialStore(dsn, SCHEMA)
    await store.create()
    yield store
    await store.drop()


@pytest.fixture
async def bus(store: PostgresTrialStore) -> AsyncIterator[PostgresBus]:
    async with PostgresBus(store.url, topology(timedelta(seconds=30)), schema=SCHEMA) as bus:
        yield bus


def in_line(count: int) -> list[Envelope]:
    return [Envelope(type="Job", stream=LINE, partition_key="key") for _ in range(count)]


def change(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount > 0


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("UPDATE {}.outbox_event SET next_retry_at = now()", "two heads: verify.line/key"),
        ("UPDATE {}.outbox_event SET next_retry_at = 'infinity'", "no head: verify.line/key"),
        (
            "UPDATE {}.outbox_event SET next_retry_at = CASE id WHEN 2 THEN now() ELSE 'infinity'::timestamptz END",
            "head is not the first: verify.line/key",
        ),
        ("UPDATE {}.outbox_event SET lease_token = 99 WHERE id = 2", "two owners: verify.line/key"),
        ("DELETE FROM {}.outbox_key", "key row missing: verify.line/key"),
        ("DELETE FROM {}.outbox_event", "key row left over: verify.line/key"),
        ("DELETE FROM {}.outbox_lease", "in flight without a lease: verify.line/1"),
    ],
)
async def test_a_broken_invariant_is_named(
    store: PostgresTrialStore, bus: PostgresBus, dsn: str, damage: str, complaint: str
) -> None:
    await bus.publish(*in_line(3))
    assert len(await bus.claim(LINE, 10, "worker")) == 3
    assert await store.broken_invariants() == []
    change(dsn, damage.format(SCHEMA))
    assert complaint in await store.broken_invariants()


async def test_every_event_is_shown_with_its_end_and_the_token_that_settled_it(
    store: PostgresTrialStore, bus: PostgresBus
) -> None:
    await bus.publish(*(Envelope(type="Job", stream=ANY) for _ in range(3)))
    assert await store.unfinished() == 3
    done, dead = await bus.claim(ANY, 2, "worker")
    async with bus.transaction() as transaction:
        await transaction.settle(done, Done())
        await transaction.settle(dead, Dead("no use", "useless"))
    assert await store.unfinished() == 1
    found = [(event.position, event.status, event.token, event.error_code) for event in await store.events()]
    assert found == [(1, "DONE", done.token, None), (2, "DEAD", dead.token, "useless"), (3, "PENDING", 0, None)]


async def test_the_log_is_read_in_the_order_of_its_transactions(store: PostgresTrialStore, bus: PostgresBus) -> None:
    for first in (1, 3):
        async with bus.transaction() as transaction:
            await transaction.append(
                *(LogEntry(type="traced", actor="test", data={"number": number}) for number in (first, first + 1)),
                LogEntry(type="other", actor="test"),
            )
    assert [data["number"] for data in await store.log_data("traced")] == [1, 2, 3, 4]


async def test_only_connections_of_the_processes_under_test_are_cut(
    store: PostgresTrialStore, bus: PostgresBus, dsn: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as bystander:
        assert await store.cut_connections(100) > 0
        assert bystander.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(Unavailable):
        await bus.publish(Envelope(type="Job", stream=ANY))


@pytest.mark.parametrize("keep", [True, False])
async def test_a_slow_transaction_is_committed_or_rolled_back_as_requested(
    store: PostgresTrialStore, bus: PostgresBus, *, keep: bool
) -> None:
    async with store.slow_transaction(bus, seconds=0, keep=keep) as transaction:
        await transaction.publish(Envelope(type="Job", stream=ANY))
        assert await store.unfinished() == 0
    assert await store.unfinished() == int(keep)


async def test_a_dropped_store_leaves_nothing(store: PostgresTrialStore, dsn: str) -> None:
    await store.drop()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT to_regnamespace(%s)", (SCHEMA,)).fetchone() == (None,)
