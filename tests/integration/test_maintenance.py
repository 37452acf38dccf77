import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

import httpx
import psycopg
import pytest
from prometheus_client import CollectorRegistry

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Done, Envelope, Retention, Stream, Topology
from kingdom.bus.maintenance import run_retention, serving_metrics
from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.operations import RetentionReport, StreamStats
from kingdom.errors import Misconfigured, Unavailable
from tests.patience import PATIENCE_SECONDS

TOPOLOGY = Topology([Stream(name="orders"), Stream(name="mail")])
OFTEN = timedelta(milliseconds=20)


class Unsteady(PostgresOperations):
    """Fails every second call, alternating between an expected and an unexpected error."""

    calls = 0

    async def stats(self) -> list[StreamStats]:
        self._fail()
        return await super().stats()

    async def retain(self, retention: Retention) -> RetentionReport:
        self._fail()
        return await super().retain(retention)

    def _fail(self) -> None:
        Unsteady.calls += 1
        if Unsteady.calls % 4 == 1:
            raise Unavailable("just now")
        if Unsteady.calls % 4 == 3:
            raise ZeroDivisionError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the store and another task change it
            await asyncio.sleep(0.02)


def partitions(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        (row,) = connection.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'kingdom.log'::regclass")
    return int(row[0])


async def test_metrics_and_retention_keep_their_interval_after_any_failure(dsn: str) -> None:
    registry = CollectorRegistry()

    def pending(stream: str) -> float | None:
        return registry.get_sample_value("kingdom_outbox_pending", {"stream": stream})

    async with PostgresBus(dsn, TOPOLOGY) as bus, AsyncExitStack() as stack:
        refresh = partial(BacklogMetrics(registry).refresh, Unsteady(bus), ["orders"])
        serving = serving_metrics(registry, refresh, host="127.0.0.1", port=0, every=OFTEN)
        await stack.enter_async_context(serving)
        upkeep = asyncio.create_task(run_retention(Unsteady(bus), Retention(partitions_ahead_days=2), every=OFTEN))
        await until(lambda: pending("orders") == 0)
        await bus.publish(Envelope(type="T", stream="mail"))
        await until(lambda: pending("mail") == 1)
        async with bus.transaction() as transaction:
            for delivery in await bus.claim("mail", 1, "me"):
                await transaction.settle(delivery, Done())
        await until(lambda: pending("mail") is None)
        assert pending("orders") == 0
        await until(lambda: partitions(dsn) == 4)
        assert not upkeep.done()
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)


async def test_metrics_are_served_on_loopback_until_the_block_ends() -> None:
    registry = CollectorRegistry()
    BacklogMetrics(registry)
    async with httpx.AsyncClient() as client:
        async with serving_metrics(registry, host="127.0.0.1", port=0) as address:
            assert "# TYPE kingdom_outbox_oldest_pending_seconds gauge" in (await client.get(address)).text
            port = httpx.URL(address).port
            with pytest.raises(Misconfigured, match="choose another port"):
                await AsyncExitStack().enter_async_context(serving_metrics(registry, host="127.0.0.1", port=port or 0))
        with pytest.raises(httpx.ConnectError):
            await client.get(address)
