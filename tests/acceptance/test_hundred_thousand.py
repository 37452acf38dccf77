"""Two worker processes, many events, handlers that fail: everything is done exactly once and in order."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateBouncer, PrivateCluster
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Envelope
from tests.acceptance.counting_worker import TOPOLOGY
from tests.integration.processes import child

BATCH = 250
KEYS = 300
PATIENCE_SECONDS = 500
FAILURES = 0.05


@pytest.fixture(params=["direct", "pgbouncer"])
def database_url(request: pytest.FixtureRequest, cluster: PrivateCluster, dsn: str) -> Iterator[str]:
    """Return the URL by which publishers and workers reach the database: directly or through PgBouncer."""
    if request.param == "direct":
        yield dsn
    else:
        with PrivateBouncer(cluster.dsn) as bouncer:
            yield bouncer.dsn(str(conninfo_to_dict(dsn)["dbname"]))


def batches(count: int) -> Iterator[list[Envelope]]:
    """Yield as many unordered events as ordered ones, mixed; each key counts its own steps."""
    made: list[Envelope] = []
    for number in range(count // 2):
        made.append(Envelope(type="Job", payload={"n": number}))
        made.append(Envelope(type="Step", payload={"n": number // KEYS}, partition_key=str(number % KEYS)))
        if len(made) >= BATCH:
            yield made
            made = []
    yield made


async def publish(database_url: str, count: int, *, pgbouncer: bool) -> None:
    waiting = batches(count)
    async with PostgresBus(database_url, TOPOLOGY, through_pgbouncer=pgbouncer) as bus:
        for batch in waiting:
            await bus.publish(*batch)


async def until_nothing_is_open(dsn: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while await (await connection.execute("SELECT id FROM kingdom.outbox_event LIMIT 1")).fetchone():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def answer(dsn: str, question: bytes) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        return await (await connection.execute(question)).fetchall()


async def check(dsn: str, count: int) -> None:
    half = count // 2
    archived = b"SELECT stream, status, count(*), count(DISTINCT event_id) FROM kingdom.outbox_archive GROUP BY 1, 2"
    assert sorted(await answer(dsn, archived)) == [("jobs", "DONE", half, half), ("steps", "DONE", half, half)]
    handled = b"SELECT type, count(*), count(DISTINCT (aggregate_id, data->'n')) FROM kingdom.log GROUP BY 1"
    assert sorted(await answer(dsn, handled)) == [("Job", half, half), ("Step", half, half)]
    # A key belongs to one transaction at a time, so its entries were numbered in the order of its commits.
    misplaced = (
        b"SELECT count(*) FROM (SELECT (data->>'n')::int AS n,"
        b" row_number() OVER (PARTITION BY aggregate_id ORDER BY seq) - 1 AS place"
        b" FROM kingdom.log WHERE type = 'Step') x WHERE n <> place"
    )
    assert await answer(dsn, misplaced) == [(0,)]
    retried = b"SELECT count(*) FILTER (WHERE attempt_count > 1)::float8 / count(*) FROM kingdom.outbox_archive"
    ((share,),) = await answer(dsn, retried)
    assert isinstance(share, float)
    assert FAILURES / 2 < share < FAILURES * 2
    shares = await answer(dsn, b"SELECT actor, count(*) FROM kingdom.log GROUP BY 1")
    assert {actor for actor, _ in shares} == {"one", "two"}
    assert min(int(str(done)) for _, done in shares) > count / 20


@pytest.mark.parametrize(
    "count", [pytest.param(10_000, marks=pytest.mark.benches), pytest.param(100_000, marks=pytest.mark.long)]
)
async def test_every_event_is_done_exactly_once_and_every_key_keeps_its_order(
    dsn: str, database_url: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pgbouncer = database_url != dsn
    options = {"failures": FAILURES, "pgbouncer": pgbouncer}
    async with (
        child("acceptance.counting_worker", database_url, name="one", **options) as one,
        child("acceptance.counting_worker", database_url, name="two", **options) as two,
    ):
        began = time.monotonic()
        await publish(database_url, count, pgbouncer=pgbouncer)
        published = time.monotonic()
        await until_nothing_is_open(dsn)
        ended = time.monotonic()
        for worker in (one, two):
            worker.signal(signal.SIGTERM)
            assert await worker.ends() == 0
    await check(dsn, count)
    with capsys.disabled():
        rates = f"published {count / (published - began):.0f}/s, done {count / (ended - began):.0f}/s"
        sys.stdout.write(f" [{count} {'through pgbouncer' if pgbouncer else 'direct'}: {rates}] ")
