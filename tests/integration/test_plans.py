"""Every statement on the path of an event uses its indexes and stays below its limit of buffers."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.resources import files
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from bench.explain import ExplainedBus
from bench.fill import fill_archive, fill_events
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import PostgresOperations, migrate
from kingdom.bus import (
    Dead,
    Done,
    Envelope,
    LogCursor,
    LogEntry,
    Record,
    RecordKind,
    RecordQuery,
    Retry,
    Stream,
    Topology,
)
from kingdom.bus.outcome import AnyOutcome, Release
from kingdom.clock import utc_now

EVENTS = 60_000
LEASE = timedelta(hours=1)  # longer than any test
STREAMS = [Stream(name="stream-0", lease=LEASE), Stream(name="line", lease=LEASE, ordered=True, on_dead="skip")]
INDEXES = ("owner", "shop", "city")
THINGS = RecordKind(
    name="thing", directories={"open": "open", "shut": "shut"}, final=frozenset({"shut"}), indexes=INDEXES
)
PARTS = RecordKind(name="part", directories={"open": "parts"}, indexes=INDEXES)
UPDATES = "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relname = 'outbox_event'"
Act = Callable[[ExplainedBus], Awaitable[None]]
# These statements read no table of Kingdom, only settings, sequences and locks of the server, or wake workers.
PLANLESS = {"isolation", "log_horizon", "log_lag", "notify"}
HOT_FILES = ("claim.sql", "lease.sql", "log.sql", "publish.sql", "record.sql", "settle.sql")
FILLINGS = (
    """INSERT INTO kingdom.record (kind, id, version, state, owner, due_at, doc)
       SELECT 'thing', 'thing-' || g, 1, CASE WHEN g % 50 = 0 THEN 'open' ELSE 'shut' END, 'owner-' || g % 1000,
         CASE WHEN g % 20 = 0 THEN now() - g * interval '1 s' END, '{"text": "…"}' FROM generate_series(1, 50000) g""",
    """INSERT INTO kingdom.record (kind, id, version, state, index_2, index_3, doc)
       SELECT 'part', 'part-' || g, 1, 'open', 'shop-' || g % 1000, 'city-' || g % 10, '{}'
         FROM generate_series(1, 50000) g""",
    """INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data)
       SELECT now(), 'thing.done', 'test', md5(g::text), 'thing', g::text, '{}' FROM generate_series(1, 50000) g""",
    """INSERT INTO kingdom.once_key (scope, key, expires_at)
       SELECT 'webhook', g::text, now() + interval '1 day' FROM generate_series(1, 50000) g""",
    "VACUUM ANALYZE",
)


@pytest.fixture(scope="module")
def filled(cluster: PrivateCluster) -> Iterator[str]:
    dsn = cluster.create_database("plans")
    asyncio.run(migrate(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill_events(connection, EVENTS)
        first = "CASE WHEN g <= 500 THEN at ELSE 'infinity' END"
        fill_events(connection, EVENTS, stream="'line'", key="'key-' || g % 500", due=first)
        fill_archive(connection, EVENTS)
        fill_archive(connection, EVENTS // 10, given=True)
        for filling in FILLINGS:
            connection.execute(filling)
    yield dsn
    cluster.drop_database("plans")


@pytest.fixture
async def bus(filled: str) -> AsyncIterator[ExplainedBus]:
    async with open_bus(filled) as bus:
        yield bus


@asynccontextmanager
async def open_bus(dsn: str) -> AsyncIterator[ExplainedBus]:
    async with ExplainedBus(dsn, Topology(STREAMS), [THINGS, PARTS], connections=1) as bus:
        yield bus


def event(stream: str, number: int = 0) -> Envelope:
    return Envelope(type="Measured", stream=stream, partition_key=f"key-{number}", payload={"text": "x" * 160})


async def claim(bus: ExplainedBus) -> None:
    assert len(await bus.claim("stream-0", 50, "worker")) == 50


async def claim_ordered(bus: ExplainedBus) -> None:
    assert len(await bus.claim("line", 50, "worker")) == 50


def settling(stream: str, limit: int, outcome: AnyOutcome, *, held: bool = True) -> Act:
    async def act(bus: ExplainedBus) -> None:
        deliveries = await bus.claim(stream, limit, "worker")
        async with bus.transaction(hold=deliveries if held else ()) as transaction:
            for delivery in deliveries:
                await transaction.settle(delivery, outcome)

    return act


def publishing(stream: str, count: int, *, chosen: bool = False) -> Act:
    """Return an action that publishes events, with generated ids or with ids that the publisher chose."""

    async def act(bus: ExplainedBus) -> None:
        events = [event(stream, number) for number in range(count)]
        assert await bus.publish(*(with_id(each, uuid4()) if chosen else each for each in events)) == ()

    return act


# Changing the same rows again is cheaper, so each call uses new numbers.
_untouched = itertools.count(100, 50)


async def publish_known_ids(bus: ExplainedBus) -> None:
    key = next(_untouched) + EVENTS
    known = [with_id(event("line", key), each) for each in await move_ended_events("line", bus, 3)]
    # The three known events are withdrawn again, so the fourth becomes the first event of its key.
    assert len(await bus.publish(*known, with_id(event("line", key), uuid4()))) == 3
    known = [with_id(event("stream-0"), each) for each in await move_ended_events("stream-0", bus, 3)]
    assert len(await bus.publish(*known, *(with_id(event("stream-0"), uuid4()) for _ in range(47)))) == 3


def with_id(envelope: Envelope, event_id: UUID) -> Envelope:
    return msgspec.structs.replace(envelope, event_id=event_id)


async def move_ended_events(stream: str, bus: ExplainedBus, count: int) -> list[UUID]:
    """Move ended events whose ids publishers chose to a stream, and return their ids."""
    async with bus.pool.connection() as connection:
        cursor = await connection.execute(
            "UPDATE kingdom.outbox_archive SET stream = %s WHERE event_id_given AND event_id = ANY(ARRAY("
            " SELECT event_id FROM kingdom.outbox_archive WHERE event_id_given LIMIT %s)) RETURNING event_id",
            [stream, count],
        )
        return [row["event_id"] for row in await cursor.fetchall()]


async def publish_twice(bus: ExplainedBus) -> None:
    again = event("line")
    await bus.publish(again)
    assert len(await bus.publish(again)) == 1


async def close_leases(bus: ExplainedBus) -> None:
    await settling("stream-0", 50, Done())(bus)
    await bus.close()


async def renew(bus: ExplainedBus) -> None:
    tokens = [(await bus.claim("stream-0", 1, "worker"))[0].token for _ in range(10)]
    assert bus.renew(dict.fromkeys(tokens, LEASE)).alive == set(tokens)


async def reap(bus: ExplainedBus) -> None:
    (delivery, *_) = await bus.claim("stream-0", 50, "worker")
    bus.renew({delivery.token: timedelta(seconds=-1)})
    assert await bus.reap() == 50


async def put_new(bus: ExplainedBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.put(Record(kind="thing", id="new", state="open"))


async def put_all_new(bus: ExplainedBus) -> None:
    async with bus.transaction() as transaction:
        for _ in range(50):
            await transaction.put(Record(kind="thing", id=f"new-{uuid4()}", state="open"))


async def put_known(bus: ExplainedBus) -> None:
    async with bus.transaction() as transaction:
        known = await transaction.get("thing", "thing-77")
        assert known
        await transaction.put(known)


async def put_many(bus: ExplainedBus) -> None:
    first = next(_untouched)
    ids = [f"thing-{number}" for number in range(first, first + 50)]
    async with bus.transaction() as transaction:
        await transaction.read_ahead([("thing", each) for each in ids])
        for each in ids:
            known = await transaction.get("thing", each)
            assert known
            await transaction.put(known)
            await transaction.put(Record(kind="thing", id=f"new-{uuid4()}", state="open"))


def by_index(index: str, value: str, after: str | None = None) -> RecordQuery:
    return RecordQuery(kind="thing" if index == "owner" else "part", index=index, value=value, after=after)


def desc(query: RecordQuery) -> RecordQuery:
    return replace(query, descending=True)


async def write_together(bus: ExplainedBus) -> None:
    """React to 50 ordered events: each changes a known record, adds one, publishes and appends to the log."""
    deliveries, first = await bus.claim("line", 50, "worker"), next(_untouched)
    known = [("thing", f"thing-{number}") for number in range(first, first + 50)]
    async with bus.transaction(hold=deliveries, optimistic=True) as transaction:
        await transaction.read_ahead(known)
        for number, (delivery, (kind, record_id)) in enumerate(zip(deliveries, known, strict=True)):
            record = await transaction.get(kind, record_id)
            assert record
            await transaction.put(record)
            await transaction.put(Record(kind="thing", id=f"new-{uuid4()}", state="open"))
            await transaction.publish(event("line", number))
            await transaction.append(LogEntry(type="thing.done", actor="test"))
            await transaction.settle(delivery, Done())


def finding(query: RecordQuery) -> Act:
    async def act(bus: ExplainedBus) -> None:
        async with bus.transaction() as transaction:
            assert await transaction.find(query)

    return act


async def find_ahead(bus: ExplainedBus) -> None:
    ascending = [RecordQuery(kind="thing", state="open"), RecordQuery(kind="thing", after="thing-5")]
    async with bus.transaction() as transaction:
        await transaction.find_ahead([*ascending, *map(desc, ascending), RecordQuery(kind="thing", due_by=utc_now())])


async def take_once(bus: ExplainedBus) -> None:
    async with bus.transaction() as transaction:
        assert not await transaction.once("webhook", "77", timedelta(days=1))


async def append(bus: ExplainedBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(*(LogEntry(type="thing.done", actor="test") for _ in range(10)))


async def read_log(bus: ExplainedBus) -> None:
    operations = PostgresOperations(bus)
    entries = await operations.read_log(LogCursor(), 10)
    assert len(await operations.read_log(entries[-1].cursor, 100)) == 100


async def read_log_about(bus: ExplainedBus) -> None:
    (entry,) = await PostgresOperations(bus).read_log(LogCursor(), 10, "77")
    assert entry.entry.aggregate_id == "77"


async def log_end(bus: ExplainedBus) -> None:
    assert await PostgresOperations(bus).log_end() > LogCursor()


async def find_log_entry(bus: ExplainedBus) -> None:
    operations = PostgresOperations(bus)
    assert await operations.keeps_log_after(await operations.log_end())


async def stats(bus: ExplainedBus) -> None:
    assert {row.stream for row in await PostgresOperations(bus).stats()} == {"stream-0", "line"}


@dataclass(frozen=True)
class Case:
    act: Act
    buffers: int
    indexes: set[str]
    read_whole: set[str] = field(default_factory=set)
    # Most statements handle 50 events, which they must not compare with each other.
    rows_read: int = 250


EVENT, LEASES, OPEN, LINE_INDEX = "outbox_event_pkey", "outbox_lease_pkey", "outbox_open", "outbox_line"
KEY, ONCE, PAUSE, LOG = "outbox_key_pkey", "outbox_once", "outbox_pause_pkey", "log_default_seq_idx"
DEAD_INDEX, GIVEN = "outbox_dead", "outbox_archive_default_event_id_stream_idx"
CASES = {
    "claim": Case(claim, 450, {OPEN, LEASES, PAUSE, EVENT}),
    "claim_ordered": Case(claim_ordered, 450, {OPEN, LINE_INDEX, LEASES, PAUSE, EVENT}),
    "hold": Case(settling("stream-0", 50, Done()), 180, {EVENT, LEASES}),
    "fence": Case(settling("stream-0", 50, Release(), held=False), 10, {LEASES}),
    "close_leases": Case(close_leases, 15, {LEASES, EVENT}),
    "renew": Case(renew, 60, {LEASES}),
    "reap": Case(reap, 1200, {EVENT, LEASES}),
    "reap_orphans": Case(reap, 600, {OPEN, LINE_INDEX, LEASES, EVENT}),
    "repair_clock": Case(reap, 100, {OPEN, LEASES, EVENT}),
    "lowest_lease": Case(reap, 10, {LEASES}),
    "publish": Case(publishing("stream-0", 50, chosen=True), 900, {ONCE}),
    "publish_fresh": Case(publishing("stream-0", 50), 900, set()),
    "publish_one": Case(publishing("stream-0", 1, chosen=True), 60, {ONCE}),
    "publish_one_fresh": Case(publishing("stream-0", 1), 200, set()),  # the first insert looks for free pages, later 8
    "publish_ordered": Case(publishing("line", 50), 1500, {ONCE, KEY}),
    "withdraw_known": Case(publish_known_ids, 500, {ONCE, GIVEN}),
    "promote_heads": Case(publish_known_ids, 30, {EVENT, LINE_INDEX}),
    "drop_idle_keys": Case(publish_twice, 20, {KEY, LINE_INDEX}),
    "lock_keys": Case(settling("line", 50, Done()), 60, {KEY}),
    "done": Case(settling("stream-0", 50, Done()), 650, {EVENT, LEASES}),
    "done_ordered": Case(settling("line", 50, Done()), 630, {EVENT, KEY, LEASES, LINE_INDEX}),
    "dead": Case(settling("stream-0", 1, Dead("never")), 40, {EVENT, LEASES}),
    "dead_ordered": Case(settling("line", 1, Dead("never")), 80, {EVENT, KEY, LEASES, LINE_INDEX}),
    "reschedule": Case(settling("stream-0", 1, Retry()), 40, {EVENT, LEASES}),
    "release": Case(settling("stream-0", 50, Release()), 320, {EVENT, LEASES}),
    "get_record": Case(put_known, 10, {"record_pkey"}),
    "insert_record": Case(put_new, 40, {"record_pkey"}),
    "insert_records": Case(put_all_new, 900, set()),
    "update_record": Case(put_known, 20, {"record_pkey"}),
    "get_records": Case(put_many, 250, {"record_pkey"}),
    "hold_and_read": Case(write_together, 400, {EVENT, LEASES, "record_pkey"}),
    "write": Case(write_together, 3000, {"record_pkey", ONCE, KEY}, {"log_seq_seq"}),
    "find_by_state": Case(finding(RecordQuery(kind="thing", state="open")), 160, {"record_state"}),
    "find_by_kind": Case(finding(RecordQuery(kind="thing", after="thing-5")), 160, {"record_pkey"}),
    "find_by_index_1": Case(finding(by_index("owner", "owner-7")), 160, {"record_owner"}),
    "find_by_index_2": Case(finding(by_index("shop", "shop-7")), 160, {"record_index_2"}),
    # One value has 5,000 records, of which a page in the middle is read.
    "find_by_index_3": Case(finding(by_index("city", "city-7", "part-27")), 160, {"record_index_3"}),
    "find_by_state_descending": Case(finding(desc(RecordQuery(kind="thing", state="open"))), 160, {"record_state"}),
    "find_by_kind_descending": Case(finding(desc(RecordQuery(kind="thing", after="thing-5"))), 160, {"record_pkey"}),
    "find_by_index_1_descending": Case(finding(desc(by_index("owner", "owner-7"))), 160, {"record_owner"}),
    "find_by_index_2_descending": Case(finding(desc(by_index("shop", "shop-7"))), 160, {"record_index_2"}),
    "find_by_index_3_descending": Case(finding(desc(by_index("city", "city-7", "part-27"))), 160, {"record_index_3"}),
    "find_due": Case(finding(RecordQuery(kind="thing", due_by=utc_now())), 160, {"record_due"}),
    "find_many": Case(find_ahead, 700, {"record_state", "record_pkey", "record_due"}, rows_read=500),
    "once": Case(take_once, 30, {"once_key_pkey"}),
    "append": Case(append, 200, set(), {"log_seq_seq"}),
    "read_log": Case(read_log, 20, {LOG}),
    "read_log_about": Case(read_log_about, 30, {"log_default_aggregate_id_seq_idx"}),
    "log_end": Case(log_end, 10, {LOG}),
    "find_log_entry": Case(find_log_entry, 10, {LOG}),
    "stats": Case(stats, 1000, {OPEN, DEAD_INDEX, EVENT, PAUSE}, {"outbox_lease"}, rows_read=2 * EVENTS),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_statement_uses_its_indexes_and_reads_few_rows_and_buffers(bus: ExplainedBus, name: str) -> None:
    expected = CASES[name]
    await expected.act(bus)
    plan = max(bus.take(name), key=lambda plan: plan.buffers)
    assert plan.indexes == expected.indexes
    assert plan.read_whole == expected.read_whole
    assert 0 < plan.buffers <= expected.buffers
    assert not plan.compiled
    assert plan.rows_read <= expected.rows_read


def test_every_statement_for_an_event_has_a_case() -> None:
    folder = files("kingdom.backends.postgres") / "sql"
    names = [re.findall(r"^-- name: (\w+)$", (folder / file).read_text(), re.MULTILINE) for file in HOT_FILES]
    assert {name for found in names for name in found} - PLANLESS <= CASES.keys()


@pytest.mark.parametrize("stream", ["stream-0", "line"])
async def test_a_claim_is_a_hot_update_for_events_of_any_length(cluster: PrivateCluster, stream: str) -> None:
    dsn = cluster.create_database("lengths")
    await migrate(dsn)
    async with open_bus(dsn) as bus:
        for length in range(0, 240, 8):
            envelopes = [event(stream, length) for _ in range(50)]
            await bus.publish(*(msgspec.structs.replace(each, payload={"text": "x" * length}) for each in envelopes))
            assert len(await bus.claim(stream, 50, "worker")) == 50
        async with bus.pool.connection() as connection:
            await connection.execute("SELECT pg_stat_force_next_flush()")
            cursor = await connection.execute(UPDATES)
            assert await cursor.fetchall() == [{"all": 1500, "hot": 1500}]
    cluster.drop_database("lengths")


async def test_a_plan_that_was_made_for_a_short_stream_reads_only_the_events_of_its_keys(
    cluster: PrivateCluster,
) -> None:
    dsn = cluster.create_database("short")
    await migrate(dsn)
    # So few events seem to fit into one page of an index, but entries with long keys need several pages.
    events = [msgspec.structs.replace(event("line"), partition_key=f"{number:0100}") for number in range(500)]
    async with open_bus(dsn) as bus:
        drain = settling("line", 50, Done())
        await bus.publish(*events[:100])
        await drain(bus)
        for _ in range(4):
            await bus.publish(*(msgspec.structs.replace(each, event_id=uuid4()) for each in events))
        bus.take()
        await drain(bus)
        read = {plan.name: plan.rows_read for plan in bus.take()}
    cluster.drop_database("short")
    assert {name: rows for name, rows in read.items() if rows > 250} == {}
    assert read.keys() >= {"claim_ordered", "done_ordered"}
