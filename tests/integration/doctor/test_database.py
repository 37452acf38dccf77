import itertools
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench.postgres import PrivateCluster
from bench.servers import LOOPBACK, free_port
from kingdom.bootstrap import migrate
from kingdom.bus.log import LOST_TRANSACTIONS
from kingdom.clock import utc_now
from kingdom.doctor.database import read_facts
from kingdom.doctor.database_checks import _SHORTEST_MS, CONNECTIONS_BUSY, judge_transactions, judge_version
from kingdom.settings import Settings
from tests.integration.doctor.scene import look, look_at

CHECKS = (
    "database-version",
    "database-durability",
    "database-connections",
    "database-timeouts",
    "database-transactions",
    "database-clock",
)
FEW = 30
_numbers = itertools.count()


@pytest.fixture(scope="module")
def careful() -> Iterator[PrivateCluster]:
    """A server with safe settings that allows few connections."""
    with PrivateCluster(fsync=True, shared_buffers="32MB", settings={"max_connections": str(FEW)}) as cluster:
        yield cluster


@pytest.fixture
def database(careful: PrivateCluster) -> Iterator[str]:
    """An empty database."""
    name = f"doctor_{next(_numbers)}"
    yield careful.create_database(name)
    careful.drop_database(name)


def alter(url: str, statement: str) -> None:
    """Change a setting of a database for all later sessions."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} {}").format(name, sql.SQL(statement)))


async def test_a_database_that_was_migrated_is_well(database: str) -> None:
    await migrate(database)
    found = await look("store", "migrations", "roles", *CHECKS, url=database)
    fine = {name for name, report in found.items() if report.status == "ok"}
    assert {"store", "migrations", *CHECKS} - fine <= {"database-connections"}
    assert found["roles"].found == "no role of the court runs on this realm"
    assert found["database-version"].found.startswith("PostgreSQL ")


async def test_a_database_that_lacks_migrations_is_reported(database: str) -> None:
    found = await look("store", "migrations", "roles", url=database)
    assert (found["store"].status, found["migrations"].status, found["roles"].status) == ("ok", "fail", "skipped")
    assert "0001_create_bus" in found["migrations"].found
    assert found["migrations"].fix == "kingdom bus migrate"


async def test_a_database_that_does_not_answer_is_reported_once() -> None:
    url = f"postgresql://nobody:very-secret@{LOOPBACK}:{free_port()}/kingdom"
    found = await look("environment", "directory", "lock", "store", "migrations", "roles", *CHECKS, url=url)
    assert [name for name, report in found.items() if report.status == "fail"] == ["store"]
    assert "the database does not answer" in found["store"].found
    assert {found[name].status for name in ("migrations", *CHECKS)} == {"skipped"}
    assert "very-secret" not in repr(found)


async def test_a_database_that_loses_commits_is_reported(database: str) -> None:
    alter(database, "SET synchronous_commit = off")
    report = await look_at("database-durability", url=database)
    assert (report.status, "synchronous_commit is off" in report.found) == ("fail", True)
    assert report.fix.endswith("SET synchronous_commit = on")


async def test_a_standby_that_follows_asynchronously_is_reported(database: str) -> None:
    following = psycopg.pq.PGconn.connect(make_conninfo(database, replication="true").encode())
    try:
        report = await look_at("database-durability", url=database)
        assert (report.status, "1 standby follows asynchronously" in report.found) == ("warn", True)
        assert "synchronous_standby_names" in report.fix
    finally:
        following.finish()


async def test_a_server_that_lost_confirmed_transactions_is_reported_for_a_week(database: str) -> None:
    await migrate(database)
    for days, status in ((8, "ok"), (6, "warn")):
        insert = "INSERT INTO kingdom.log (at, type, actor, trace_id, aggregate_type, aggregate_id, data) VALUES"
        with psycopg.connect(database) as connection:
            values = "(now() - make_interval(days => %s), 'store.transactions_lost', 'bus', '', 'store', %s, '{}')"
            connection.execute(f"{insert} {values}", (days, LOST_TRANSACTIONS))
        report = await look_at("database-durability", url=database)
        assert (report.status, "had lost confirmed transactions" in report.found) == (status, status == "warn")


async def test_a_server_that_does_not_sync_is_reported(cluster: PrivateCluster, dsn: str) -> None:
    if cluster.directory is None:
        pytest.skip("a test must not weaken the settings of the server of DATABASE_URL")
    report = await look_at("database-durability", url=dsn)
    assert (report.status, "fsync and full_page_writes off" in report.found) == ("fail", True)


async def test_a_database_that_can_only_be_read_is_reported(database: str) -> None:
    alter(database, "SET default_transaction_read_only = on")
    report = await look_at("database-durability", url=database)
    assert (report.status, "nothing can be written" in report.found) == ("fail", True)


async def test_too_few_connections_are_reported(careful: PrivateCluster, database: str) -> None:
    if careful.directory is None:
        pytest.skip("a test must not limit the connections of the server of DATABASE_URL")
    report = await look_at("database-connections", url=database)
    assert (report.status, "max_connections allows 27" in report.found) == ("warn", True)
    assert "max_connections" in report.fix


async def test_a_limit_of_the_database_is_reported(database: str) -> None:
    alter(database, "CONNECTION LIMIT 5")
    report = await look_at("database-connections", url=database)
    assert (report.status, "the limit of this database allows 5" in report.found) == ("fail", True)
    assert report.fix.endswith("CONNECTION LIMIT -1")
    assert CONNECTIONS_BUSY > FEW


@pytest.mark.parametrize(
    "name", ["statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout"]
)
async def test_a_timeout_that_interrupts_normal_work_is_reported(database: str, name: str) -> None:
    # A much shorter timeout would cancel the check itself.
    limit = _SHORTEST_MS[name] - 1
    alter(database, f"SET {name} = {limit}")
    report = await look_at("database-timeouts", url=database)
    assert (report.status, f"{name} is {limit} ms" in report.found) == ("warn", True)
    assert report.fix.endswith(f"SET {name} = 0")


async def test_a_session_that_holds_a_transaction_open_is_reported(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("SELECT 1")
        facts = await read_facts(Settings(database_url=database), utc_now)
        oldest = facts.oldest_transaction
        assert oldest is not None
        assert (oldest.pid, oldest.state) == (connection.info.backend_pid, "idle in transaction")
        assert judge_transactions(facts).status == "ok"
        later = msgspec.structs.replace(facts, oldest_transaction=msgspec.structs.replace(oldest, seconds=3600.0))
        result = judge_transactions(later)
        assert (result.status, result.fix) == ("warn", f"SELECT pg_terminate_backend({connection.info.backend_pid})")


async def test_a_clock_that_differs_from_that_of_the_database_is_reported(database: str) -> None:
    for apart, status in ((timedelta(minutes=5), "fail"), (timedelta(minutes=-5), "fail")):
        report = await look_at("database-clock", url=database, clock=lambda apart=apart: utc_now() + apart)
        side = "behind" if apart > timedelta() else "ahead of"
        assert (report.status, f"s {side} the clock of this machine" in report.found) == (status, True)


async def test_an_old_server_is_reported(database: str) -> None:
    facts = await read_facts(Settings(database_url=database), utc_now)
    result = judge_version(msgspec.structs.replace(facts, version=140_012, version_text="14.12"))
    assert (result.status, "15 or newer is needed" in result.found) == ("fail", True)


async def test_a_database_without_utf8_encoding_is_reported(careful: PrivateCluster) -> None:
    with psycopg.connect(careful.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE doctor_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        report = await look_at("database-version", url=make_conninfo(careful.dsn, dbname="doctor_ascii"))
    finally:
        careful.drop_database("doctor_ascii")
    assert (report.status, "its encoding is SQL_ASCII" in report.found) == ("fail", True)
