"""Background jobs of a worker process: serve metrics, report the throughput, and apply the retention."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from kingdom.bus.operations import Operations, Retention
from kingdom.bus.port import Bus
from kingdom.bus.throughput import HandledCounts
from kingdom.errors import Conflict, Misconfigured
from kingdom.failure_log import log_failure

REFRESH_EVERY = timedelta(seconds=15)
RETAIN_EVERY = timedelta(minutes=10)
REPORT_EVERY = timedelta(seconds=15)
_log = structlog.get_logger("kingdom.bus")


async def run_retention(
    operations: Operations,
    retention: Retention,
    *,
    every: timedelta = RETAIN_EVERY,
    on_removed: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Apply the retention periodically until cancelled. `on_removed` gets the number of items if any were removed."""

    async def retain() -> None:
        report = await operations.retain(retention)
        _log.debug("retention applied", made=report.partitions_made, dropped=report.partitions_dropped)
        if on_removed and report.removed:
            await on_removed(report.removed)

    await _repeat("retention", retain, every)


async def report_throughput(bus: Bus, handled: HandledCounts, *, every: timedelta = REPORT_EVERY) -> None:
    """Report periodically how many events the workers of this process have handled, until cancelled."""

    async def report() -> None:
        # If another process has reported at the same moment, the counts are in the next report.
        with suppress(Conflict):
            await handled.report(bus)

    await _repeat("throughput", report, every)


@asynccontextmanager
async def serving_metrics(
    registry: CollectorRegistry,
    *refreshes: Callable[[], Awaitable[None]],
    host: str,
    port: int | None,
    every: timedelta = REFRESH_EVERY,
) -> AsyncIterator[str]:
    """Serve the metrics of this process over HTTP in a thread, refresh them regularly, and yield the address.

    Port 0 selects a free port. If `port` is None, nothing is served or refreshed.
    """
    if port is None:
        yield ""
        return
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Misconfigured(f"metrics cannot be served on {host}:{port} ({error}): choose another port") from error
    address = f"http://{host}:{server.server_port}/metrics"
    _log.info("metrics served", address=address)
    refreshing = [asyncio.create_task(_repeat("metrics", refresh, every)) for refresh in refreshes]
    try:
        yield address
    finally:
        for task in refreshing:
            task.cancel()
        await asyncio.gather(*refreshing, return_exceptions=True)
        server.shutdown()
        server.server_close()
        thread.join()


async def _repeat(what: str, act: Callable[[], Awaitable[None]], every: timedelta) -> None:
    while True:
        try:
            await act()
        except Exception as error:  # noqa: BLE001 - no error may end the loop
            log_failure(_log, "maintenance failed, trying again", error, what=what)
        # The random factor keeps many workers from doing this at the same moment.
        await asyncio.sleep(every.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, no secret
