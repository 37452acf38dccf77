"""What a worker process does beside its work: it serves metrics and removes what nobody needs any more."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.operations import Operations, Retention
from kingdom.errors import KingdomError, Misconfigured

REFRESH_EVERY = timedelta(seconds=15)
RETAIN_EVERY = timedelta(minutes=10)
_log = structlog.get_logger("kingdom.bus")


async def maintain(
    operations: Operations,
    backlog: BacklogMetrics,
    streams: Collection[str],
    *,
    retention: Retention,
    refresh_every: timedelta = REFRESH_EVERY,
    retain_every: timedelta = RETAIN_EVERY,
) -> None:
    """Refresh the backlog's metrics and apply the retention, each in its own rhythm, until cancelled."""

    async def refresh() -> None:
        await backlog.refresh(operations, streams)

    async def retain() -> None:
        report = await operations.retain(retention)
        _log.debug("retention applied", made=report.partitions_made, dropped=report.partitions_dropped)

    async with asyncio.TaskGroup() as group:
        group.create_task(_repeat("metrics", refresh, refresh_every), name="kingdom-metrics")
        group.create_task(_repeat("retention", retain, retain_every), name="kingdom-retention")


@contextmanager
def serving_metrics(registry: CollectorRegistry, *, host: str, port: int) -> Iterator[str]:
    """Serve the metrics of this process over HTTP from a thread; yields the address. Port 0 takes a free one."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Misconfigured(f"metrics cannot be served on {host}:{port} ({error}): choose another port") from error
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def _repeat(what: str, act: Callable[[], Awaitable[None]], every: timedelta) -> None:
    while True:
        try:
            await act()
        except KingdomError as error:
            _log.warning("maintenance failed, trying again", what=what, error=str(error))
        except Exception:  # noqa: BLE001 - a bug here must not end the rhythm
            _log.exception("maintenance failed, trying again", what=what)
        # Jitter, so that many workers do not come at once.
        await asyncio.sleep(every.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, no secret
