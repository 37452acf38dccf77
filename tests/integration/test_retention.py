"""Retention: partitions created ahead and dropped by age, and other removals."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import (
    Dead,
    Dispatcher,
    Done,
    Envelope,
    Event,
    LogCursor,
    LogEntry,
    Record,
    RecordKind,
    Retention,
    Transaction,
)
from kingdom.bus.stream import Topology
from kingdom.errors import Conflict
from tests.contract.complete_log import CompleteLogOperations
from tests.integration.running import at_work, eventually, numbered, open_bus, rows, statuses, stream, until_all
from tests.patience import PATIENCE_SECONDS

DAY = timedelta(days=1)
PARENTS = ("outbox_archive", "log", "run_text", "courier_event")


async def partitions(bus: PostgresBus, parent: str) -> list[str]:
    found = await rows(
        bus,
        "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = ('kingdom.' || %s)::regclass ORDER BY 1",
        parent,
    )
    return [row["name"] for row in found]


def names(parent: str, first: int, last: int) -> list[str]:
    """Return the names of the partitions of some days, counted from today."""
    today = datetime.now(UTC).date()
    return [f"{parent}_{today + offset * DAY:%Y%m%d}" for offset in range(first, last + 1)]


async def finish(bus: PostgresBus, count: int) -> None:
    """Publish and archive this many events, each with a log entry."""
    await bus.publish(*numbered("Job", count))
    for delivery in await bus.claim("jobs", count, "test"):
        async with bus.transaction() as transaction:
            await transaction.settle(delivery, Done())
            await transaction.append(LogEntry(type="done", actor="test"))


async def age(bus: PostgresBus, days: int) -> None:
    """Make the rows of the default partitions older."""
    await rows(bus, "UPDATE kingdom.outbox_archive_default SET processed_at = processed_at - %s", days * DAY)
    await rows(bus, "UPDATE kingdom.log_default SET logged_at = logged_at - %s", days * DAY)


async def counts(bus: PostgresBus) -> list[tuple[str, int]]:
    """Return the number of rows of each partition."""
    found = await rows(
        bus,
        "SELECT tableoid::regclass::text AS part, count(*) AS n FROM kingdom.outbox_archive GROUP BY 1"
        " UNION ALL SELECT tableoid::regclass::text, count(*) FROM kingdom.log GROUP BY 1 ORDER BY 1",
    )
    return [(row["part"].removeprefix("kingdom."), row["n"]) for row in found]


@pytest.mark.parametrize("ahead", [0, 3])
async def test_partitions_are_made_ahead_once(dsn: str, ahead: int) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        operations = PostgresOperations(bus)
        report = await operations.retain(Retention(partitions_ahead_days=ahead))
        again = await operations.retain(Retention(partitions_ahead_days=ahead))
        for parent in PARENTS:
            assert await partitions(bus, parent) == [*names(parent, 0, ahead), f"{parent}_default"]
        await finish(bus, 2)
        today = {name for parent in ("outbox_archive", "log") for name in names(parent, 0, 0)}
        assert {part for part, _ in await counts(bus)} == today
    assert report.partitions_made == len(PARENTS) * (ahead + 1)
    assert again.partitions_made == 0
    assert report.partitions_dropped == again.partitions_dropped == 0


async def test_rows_of_the_default_partition_move_to_the_partition_of_their_day(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await finish(bus, 3)
        assert await counts(bus) == [("log_default", 3), ("outbox_archive_default", 3)]
        await PostgresOperations(bus).retain(Retention())
        assert await counts(bus) == [(names("log", 0, 0)[0], 3), (names("outbox_archive", 0, 0)[0], 3)]
        assert len(await CompleteLogOperations(bus).read_log(LogCursor(), 10)) == 3


async def test_old_rows_of_days_without_a_partition_are_removed(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        operations = PostgresOperations(bus)
        await finish(bus, 3)
        await age(bus, 2)
        await operations.retain(Retention(archive=7 * DAY, log=7 * DAY))
        assert sum(n for _, n in await counts(bus)) == 6
        await operations.retain(Retention(archive=DAY, log=DAY))
        assert await counts(bus) == []


async def test_partitions_are_dropped_at_the_age_that_their_table_sets(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        for offset in (9, 5, 0):
            day = datetime.now(UTC).date() - offset * DAY
            for parent in PARENTS:
                async with bus.pool.connection() as connection:
                    await connection.execute(
                        f"CREATE TABLE kingdom.{parent}_{day:%Y%m%d} PARTITION OF kingdom.{parent}"
                        f" FOR VALUES FROM ('{day}') TO ('{day + DAY}')"
                    )
        ages = Retention(archive=7 * DAY, log=3 * DAY, run_texts=4 * DAY, partitions_ahead_days=0)
        report = await PostgresOperations(bus).retain(ages)
        for parent in ("outbox_archive", "courier_event"):
            kept = [*names(parent, -5, -5), *names(parent, 0, 0), f"{parent}_default"]
            assert await partitions(bus, parent) == kept
        assert await partitions(bus, "log") == [*names("log", 0, 0), "log_default"]
        assert await partitions(bus, "run_text") == [*names("run_text", 0, 0), "run_text_default"]
    assert (report.partitions_made, report.partitions_dropped) == (0, 6)


async def test_dead_letters_stay_however_old_they_are(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(Envelope(type="Job"))
        (delivery,) = await bus.claim("jobs", 1, "test")
        async with bus.transaction() as transaction:
            await transaction.settle(delivery, Dead("no"))
        await rows(bus, "UPDATE kingdom.outbox_event SET processed_at = now() - interval '1 year'")
        await PostgresOperations(bus).retain(Retention(archive=DAY, log=DAY))
        assert await statuses(bus) == {"DEAD": 1}


async def test_dedup_keys_are_removed_when_they_have_expired(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        async with bus.transaction() as transaction:
            for key in ("a", "b", "c"):
                await transaction.once("test", key, DAY)
        await rows(bus, "UPDATE kingdom.once_key SET expires_at = now() - interval '1 s' WHERE key <> 'b'")
        report = await PostgresOperations(bus).retain(Retention())
        assert await rows(bus, "SELECT key FROM kingdom.once_key") == [{"key": "b"}]
        async with bus.transaction() as transaction:
            assert await transaction.once("test", "a", DAY)
            assert not await transaction.once("test", "b", DAY)
    assert report.dedup_keys_removed == 2


async def test_finished_records_are_removed_after_the_retention_of_their_kind(dsn: str) -> None:
    directories = {"open": "open", "closed": "closed"}
    brief = RecordKind(name="brief", directories=directories, final=frozenset({"closed"}), retention=DAY)
    kept = RecordKind(name="kept", directories=directories, final=frozenset({"closed"}), retention=30 * DAY)
    lasting = RecordKind(name="lasting", directories=directories, final=frozenset({"closed"}))
    async with PostgresBus(dsn, Topology([stream("jobs", "Job")]), [brief, kept, lasting]) as bus:
        async with bus.transaction() as transaction:
            for kind in ("brief", "kept", "lasting"):
                for record_id, state in (("1", "open"), ("2", "closed"), ("3", "closed")):
                    await transaction.put(Record(kind=kind, id=record_id, state=state))
        await rows(bus, "UPDATE kingdom.record SET ended_at = ended_at - %s WHERE id = '3'", 2 * DAY)
        await rows(bus, "UPDATE kingdom.record SET updated_at = now() - interval '9 days'")
        report = await PostgresOperations(bus).retain(Retention())
        left = await rows(
            bus, "SELECT kind, array_agg(id ORDER BY id) AS ids FROM kingdom.record GROUP BY 1 ORDER BY 1"
        )
    assert report.records_removed == 1
    assert [(row["kind"], row["ids"]) for row in left] == [
        ("brief", ["1", "2"]),
        ("kept", ["1", "2", "3"]),
        ("lasting", ["1", "2", "3"]),
    ]


async def test_the_search_for_old_records_reads_no_young_ones(dsn: str) -> None:
    kind = RecordKind(name="brief", directories={"closed": "closed"}, final=frozenset({"closed"}), retention=DAY)
    async with ExplainedBus(dsn, Topology([stream("jobs", "Job")]), [kind]) as bus:
        await rows(
            bus,
            "INSERT INTO kingdom.record (kind, id, version, state, ended_at, doc)"
            " SELECT 'brief', g, 1, 'closed', now(), '{}' FROM generate_series(1, 5000) g",
        )
        await rows(bus, "ANALYZE kingdom.record")
        report = await PostgresOperations(bus).retain(Retention())
        (plan,) = bus.take("remove_records")
    assert report.records_removed == 0
    assert "record_ended" in plan.indexes
    assert plan.buffers <= 20


async def test_a_record_that_is_opened_again_is_not_finished(dsn: str) -> None:
    kind = RecordKind(
        name="brief", directories={"open": "o", "closed": "c"}, final=frozenset({"closed"}), retention=DAY
    )
    async with PostgresBus(dsn, Topology([stream("jobs", "Job")]), [kind]) as bus:
        record = Record(kind="brief", id="1", state="closed")
        async with bus.transaction() as transaction:
            record = await transaction.put(record)
        async with bus.transaction() as transaction:
            await transaction.put(Record(kind="brief", id="1", state="open", version=record.version))
        assert await rows(bus, "SELECT ended_at FROM kingdom.record") == [{"ended_at": None}]


@pytest.mark.parametrize("table", ["once_key", "record"])
async def test_retention_keeps_a_row_that_another_transaction_is_using_and_does_not_wait_for_it(
    dsn: str, table: str
) -> None:
    kind = RecordKind(
        name="brief", directories={"open": "o", "closed": "c"}, final=frozenset({"closed"}), retention=DAY
    )
    async with PostgresBus(dsn, Topology([stream("jobs", "Job")]), [kind]) as bus:

        async def use(transaction: Transaction, state: str) -> None:
            if table == "once_key":
                assert await transaction.once("test", "a", DAY)
            else:
                known = await transaction.get("brief", "1")
                await transaction.put(Record(kind="brief", id="1", state=state, version=known.version if known else 0))

        async with bus.transaction() as transaction:
            await use(transaction, "closed")
        await rows(bus, "UPDATE kingdom.once_key SET expires_at = now() - interval '1 s'")
        await rows(bus, "UPDATE kingdom.record SET ended_at = now() - interval '9 days'")
        async with bus.pool.connection() as connection, connection.transaction():
            async with bus.join(connection) as transaction:
                await use(transaction, "open")
            async with asyncio.timeout(PATIENCE_SECONDS):
                report = await PostgresOperations(bus).retain(Retention())
        left = await rows(
            bus, "SELECT count(*) AS n FROM kingdom.once_key UNION ALL SELECT count(*) FROM kingdom.record"
        )
    assert (report.dedup_keys_removed, report.records_removed) == (0, 0)
    assert sum(row["n"] for row in left) == 1


async def test_several_processes_can_run_retention_at_once_while_workers_run(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(_received: Event[dict[str, int]], transaction: Transaction) -> None:
        await transaction.append(LogEntry(type="handled", actor="test"))

    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        operations = PostgresOperations(bus)
        await bus.publish(*numbered("Job", 400))
        async with at_work(bus, dispatcher):
            await asyncio.gather(*(operations.retain(Retention(partitions_ahead_days=2)) for _ in range(3)))
            await until_all(bus, "DONE", 400)
        assert sum(n for part, n in await counts(bus) if part.startswith("log")) == 400

        async def complete() -> bool:
            await operations.retain(Retention(partitions_ahead_days=2))
            return await partitions(bus, "log") == [*names("log", 0, 2), "log_default"]

        # A process that found another one running created nothing. The next run does.
        await eventually(complete)


async def test_a_long_reader_does_not_block_settlements_behind_the_cleaner(dsn: str) -> None:
    old = [datetime.now(UTC).date() - days * DAY for days in (40, 41, 42)]
    # A process that would have to wait for a table is refused, and counted.
    impatient = psycopg.conninfo.make_conninfo(dsn, options="-c lock_timeout=1ms")
    jobs = stream("jobs", "Job")
    async with open_bus(dsn, jobs) as bus, open_bus(impatient, jobs) as settling:
        for day in old:
            await rows(
                bus,
                f"CREATE TABLE kingdom.outbox_archive_{day:%Y%m%d} PARTITION OF kingdom.outbox_archive"
                f" FOR VALUES FROM ('{day}') TO ('{day + DAY}')",
            )
        async with await psycopg.AsyncConnection.connect(dsn) as reader:
            await reader.execute("SELECT count(*) FROM kingdom.outbox_archive")

            async def has_read_for_a_while() -> bool:
                query = (
                    "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND xact_start < clock_timestamp() - interval '1 s'"
                )
                return bool(await rows(bus, query, reader.info.backend_pid))

            await eventually(has_read_for_a_while)
            cleaning = asyncio.create_task(PostgresOperations(bus).retain(Retention(partitions_ahead_days=0)))
            settled = waited = 0
            while not cleaning.done() or settled < 10:
                await settling.publish(*numbered("Job", 1))
                for delivery in await settling.claim("jobs", 1, "test"):
                    try:
                        async with settling.transaction() as transaction:
                            await transaction.settle(delivery, Done())
                        settled += 1
                    except Conflict:
                        waited += 1
            assert (waited, (await cleaning).partitions_dropped) == (0, 0)
        report = await PostgresOperations(bus).retain(Retention(partitions_ahead_days=0))
        assert report.partitions_dropped == len(old)


async def test_partitions_have_the_columns_and_indexes_of_their_default(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await PostgresOperations(bus).retain(Retention(partitions_ahead_days=0))
        for parent in PARENTS:
            shapes = [await shape(bus, part) for part in await partitions(bus, parent)]
            assert len(shapes) == 2
            assert shapes[0] == shapes[1]
            assert len(shapes[0]) > 5


async def shape(bus: PostgresBus, part: str) -> list[str]:
    """Return the columns and the indexes of a partition, without its name."""
    found = await rows(
        bus,
        "SELECT format('%%s %%s %%s %%s', attname, atttypid::regtype, attnotnull, pg_get_expr(adbin, adrelid)) AS part"
        "  FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = ('kingdom.' || %s)::regclass AND attnum > 0"
        " UNION ALL SELECT split_part(pg_get_indexdef(indexrelid), ' USING ', 2) FROM pg_index"
        " WHERE indrelid = ('kingdom.' || %s)::regclass ORDER BY 1",
        part,
        part,
    )
    return [row["part"] for row in found]


async def test_a_row_is_written_even_if_the_partition_of_its_day_is_created_at_the_same_time(dsn: str) -> None:
    """The transaction fails and is repeated by its caller, as after any other conflict."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    async with open_bus(dsn, stream("jobs", "Job")) as bus, await psycopg.AsyncConnection.connect(dsn) as other:
        async with other.transaction():
            await other.execute(f"CREATE TABLE kingdom.log_{today:%Y%m%d} (LIKE kingdom.log INCLUDING ALL)")
            await other.execute("LOCK TABLE kingdom.log_default IN ACCESS EXCLUSIVE MODE")
            writing = asyncio.create_task(append(bus))

            async def waits() -> bool:
                waiting = await rows(bus, "SELECT 1 FROM pg_locks WHERE NOT granted")
                return bool(waiting)

            await eventually(waits)
            span = f"FROM ('{today.isoformat()}') TO ('{(today + DAY).isoformat()}')"
            await other.execute(
                f"ALTER TABLE kingdom.log ATTACH PARTITION kingdom.log_{today:%Y%m%d} FOR VALUES {span}"
            )
        with pytest.raises(Conflict):
            await writing
        await append(bus)
        assert len(await rows(bus, "SELECT 1 FROM kingdom.log")) == 1


async def append(bus: PostgresBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(LogEntry(type="told", actor="test", data={}))
