"""The counts of an explained plan are those of the server."""

import asyncio
import os
from typing import LiteralString

import psycopg
import pytest

from bench.explain import Plan
from bench.fill import fill_events
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from tests.integration.test_plans import CASES, open_bus

HEADS_OF_TWENTY: LiteralString = "CASE WHEN g <= 20 THEN at ELSE 'infinity' END"


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="needs a server that loads pg_stat_statements")
def test_the_buffers_of_a_plan_are_those_that_the_server_counts_for_the_statement() -> None:
    settings = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "off"}
    with PrivateCluster(settings=settings) as cluster:
        dsn = cluster.create_database("counted")
        asyncio.run(migrate(dsn))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
            fill_events(connection, 2000)
            fill_events(connection, 2000, stream="'line'", key="'key-' || g % 20", due=HEADS_OF_TWENTY)
            connection.execute("SELECT pg_stat_statements_reset()")
            counted = asyncio.run(work_a_little(dsn))
            total = connection.execute(
                "SELECT sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements WHERE query !~ 'pg_stat'"
            ).fetchone()
    assert total == (sum(plan.buffers for plan in counted),)
    assert {"claim", "claim_ordered", "done", "done_ordered", "publish_ordered", "reap"} <= {p.name for p in counted}


async def work_a_little(dsn: str) -> list[Plan]:
    async with open_bus(dsn) as bus:
        for name in ("done", "done_ordered", "publish_ordered", "reschedule", "dead_ordered", "renew", "reap"):
            await CASES[name].act(bus)
        return bus.take()
