"""The Generals' timer: fail petitions that have waited too long, so that no assignment waits forever."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from kingdom.bus.port import Bus
from kingdom.clock import utc_now
from kingdom.court.petitions.settlement import fail_overdue_petitions
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

_EVERY_SECONDS = 60.0
_log = structlog.get_logger("kingdom.court")


async def run_timers(bus: Bus, clock: Callable[[], datetime] = utc_now) -> None:
    """Run the timer until cancelled. Any number of processes may run it."""
    while True:
        try:
            if failed := await run_transaction(bus, lambda transaction: fail_overdue_petitions(transaction, clock())):
                _log.warning("overdue petitions failed", count=failed)
        except Exception as error:  # noqa: BLE001 - one invalid record must not stop the Generals
            log_failure(_log, "cannot check overdue petitions, trying again", error)
        await asyncio.sleep(_EVERY_SECONDS)
