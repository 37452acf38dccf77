"""The schema: migrations, their result, and their safety."""

import asyncio
from collections.abc import Iterator
from importlib.resources import files
from typing import LiteralString

import psycopg
import pytest

from bench.postgres import PrivateCluster
from kingdom.backends.postgres import PostgresBus, PostgresOperations, migrate, pending_migrations
from kingdom.backends.postgres.schema import all_migrations
from kingdom.bus import (
    EFFECTS,
    Dispatcher,
    Done,
    Envelope,
    Event,
    LogCursor,
    LogEntry,
    LoggedEntry,
    Topology,
    Transaction,
)
from kingdom.errors import Misconfigured
from tests.contract.complete_log import CompleteLogOperations
from tests.integration.catalog import Catalog, read_catalog
from tests.integration.running import MARKS, at_work, eventually, numbered, open_bus, stream

# Migrations create this table. The schema file does not have it.
BOOKKEEPING = frozenset({"migration", "migration_pkey"})
SCHEMA_FILE = files("kingdom.backends.postgres") / "schema.sql"


@pytest.fixture
def bare(cluster: PrivateCluster) -> Iterator["Databases"]:
    databases = Databases(cluster)
    yield databases
    databases.drop()


class Databases:
    """New empty databases."""

    _made = 0

    def __init__(self, cluster: PrivateCluster) -> None:
        self._cluster = cluster
        self._names: list[str] = []

    def make(self) -> str:
        Databases._made += 1
        self._names.append(f"bare_{Databases._made}")
        return self._cluster.create_database(self._names[-1])

    def drop(self) -> None:
        for name in self._names:
            self._cluster.drop_database(name)


def execute(dsn: str, statement: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def from_schema_file(dsn: str) -> Catalog:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA kingdom")
        connection.execute(SCHEMA_FILE.read_text(encoding="utf-8").encode())
    return read_catalog(dsn, "kingdom")


async def test_migrations_and_the_schema_file_make_equal_databases(bare: Databases) -> None:
    migrated = bare.make()
    await migrate(migrated)
    found = read_catalog(migrated, "kingdom", without=BOOKKEEPING)
    assert found == from_schema_file(bare.make())
    assert {"outbox_event", "outbox_lease", "record", "log"} <= {row[0] for row in found["relations"]}
    assert {part for part, rows in found.items() if rows} >= {"columns", "indexes", "constraints", "views"}


CHANGES: list[LiteralString] = [
    "DROP INDEX kingdom.outbox_line",
    "ALTER TABLE kingdom.outbox_event SET (fillfactor = 51)",
    "ALTER TABLE kingdom.outbox_event ALTER max_attempts SET DEFAULT 11",
    "ALTER TABLE kingdom.outbox_key ALTER turn TYPE int",
    "ALTER TABLE kingdom.outbox_event ALTER trace_id DROP NOT NULL",
    "ALTER TABLE kingdom.outbox_event DROP CONSTRAINT outbox_event_status_check",
    "ALTER TABLE kingdom.outbox_lease ADD COLUMN extra text",
    "ALTER TABLE kingdom.outbox_event ALTER payload_json SET STORAGE EXTERNAL",
    "CREATE INDEX extra ON kingdom.outbox_lease (expires_at)",
    "CREATE VIEW kingdom.extra AS SELECT 1 AS one",
    "CREATE FUNCTION kingdom.extra() RETURNS int LANGUAGE sql AS 'SELECT 1'",
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_comparison_sees_every_kind_of_difference(bare: Databases, change: LiteralString) -> None:
    dsn = bare.make()
    before = from_schema_file(dsn)
    execute(dsn, change)
    assert read_catalog(dsn, "kingdom") != before


async def test_migrating_again_changes_nothing(bare: Databases) -> None:
    dsn = bare.make()
    assert await pending_migrations(dsn) == all_migrations()
    assert await migrate(dsn) == all_migrations()
    before = read_catalog(dsn, "kingdom")
    assert await pending_migrations(dsn) == []
    assert await migrate(dsn) == []
    assert read_catalog(dsn, "kingdom") == before


async def test_if_many_processes_migrate_at_once_each_migration_is_applied_once(bare: Databases) -> None:
    dsn = bare.make()
    applied = await asyncio.gather(*(migrate(dsn) for _ in range(6)))
    each_once = sorted((migration for each in applied for migration in each), key=lambda migration: migration.name)
    assert each_once == all_migrations()
    assert read_catalog(dsn, "kingdom", without=BOOKKEEPING) == from_schema_file(bare.make())


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused(bare: Databases) -> None:
    dsn = bare.make()
    await migrate(dsn)
    execute(dsn, "UPDATE kingdom.migration SET checksum = 'another' WHERE number = 1")
    with pytest.raises(Misconfigured, match="applied with other content"):
        await migrate(dsn)


async def test_a_migration_that_fails_changes_nothing(bare: Databases) -> None:
    dsn = bare.make()
    execute(dsn, "CREATE SCHEMA kingdom")
    execute(dsn, "CREATE VIEW kingdom.outbox_all AS SELECT 1 AS in_the_way")
    with pytest.raises(psycopg.errors.DuplicateTable):
        await migrate(dsn)
    assert {row[0] for row in read_catalog(dsn, "kingdom", without=BOOKKEEPING)["relations"]} == {"outbox_all"}
    execute(dsn, "DROP VIEW kingdom.outbox_all")
    assert await migrate(dsn) == all_migrations()


def test_migrations_are_numbered_without_a_gap_and_named_for_what_they_do() -> None:
    migrations = all_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))
    for migration in migrations:
        assert migration.name.startswith(f"{migration.number:04}_")
        assert len(migration.name.split("_")) >= 3


# Like entries from a dump: with transaction numbers that are in the future here.
RESTORED: LiteralString = """
  INSERT INTO kingdom.log (xid, at, type, actor, trace_id, aggregate_type, aggregate_id, data)
  SELECT (pg_current_xact_id()::text::bigint + 1000000 - g)::text::xid8, now(), 'restored-' || g, 'test', '', '', '',
         '{}' FROM generate_series(1, 2) g ORDER BY g"""


async def test_a_log_restored_from_a_server_with_higher_transaction_numbers_is_read_in_its_order(
    bare: Databases,
) -> None:
    dsn = bare.make()
    await migrate(dsn)
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        operations = CompleteLogOperations(bus)
        await log_entry(bus, "before")
        execute(dsn, RESTORED)
        await log_entry(bus, "since")
        read = await wait_for_log(operations, LogCursor(), "before", "restored-1", "restored-2", "since")
        await log_entry(bus, "after")
        await wait_for_log(operations, read[1].cursor, "restored-2", "since", "after")


async def log_entry(bus: PostgresBus, what: str) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(LogEntry(type=what, actor="test"))


async def wait_for_log(operations: PostgresOperations, after: LogCursor, *types: str) -> list[LoggedEntry]:
    """Return the log after a cursor, once it consists of exactly these types."""
    found: list[LoggedEntry] = []

    async def is_logged() -> bool:
        found[:] = await operations.read_log(after, 10)
        return bool(found) and found[-1].entry.type == types[-1]

    await eventually(is_logged)
    assert [each.entry.type for each in found] == list(types)
    return found


async def test_two_schemas_of_one_database_do_not_mix(bare: Databases) -> None:
    dsn = bare.make()
    await migrate(dsn, "first")
    await migrate(dsn, "second")
    topology = Topology([stream("jobs", "Job"), stream("steps", "Step", ordered=True)])
    async with (
        PostgresBus(dsn, topology, [EFFECTS, MARKS], schema="first") as first,
        PostgresBus(dsn, topology, [EFFECTS, MARKS], schema="second") as second,
    ):
        await first.publish(*numbered("Job", 3), *numbered("Step", 3, partition_key="k"))
        assert await second.claim("jobs", 10, "w") == []
        assert await second.claim("steps", 10, "w") == []
        await work_off(first, 6)
    with psycopg.connect(dsn) as connection:
        names = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information'").fetchall()
    assert {name for (name,) in names} == {"public", "first", "second"}


async def work_off(bus: PostgresBus, count: int) -> None:
    dispatcher, handled = Dispatcher(), list[int]()

    @dispatcher.reaction("Job")
    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> Done:
        await transaction.append(LogEntry(type="handled", actor="test"))
        handled.append(received.payload["n"])
        return Done()

    async def all_handled() -> bool:
        return len(handled) == count

    async with at_work(bus, dispatcher):
        await eventually(all_handled)


async def test_the_error_for_a_database_without_the_schema_says_what_to_do(bare: Databases) -> None:
    async with open_bus(bare.make(), stream("jobs", "Job")) as bus:
        with pytest.raises(Misconfigured, match="kingdom bus migrate"):
            await bus.publish(Envelope(type="Job"))
        with pytest.raises(Misconfigured, match="kingdom bus migrate"):
            await bus.claim("jobs", 1, "w")
