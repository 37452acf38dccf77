"""What the engine does by the clock: hosts are lost, runs moved or continued that wait for it, checkouts released."""

import asyncio
from datetime import timedelta

import structlog

from kingdom.bus.port import Bus
from kingdom.errors import KingdomError
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import mark_lost_hosts
from kingdom.workflow.lifecycle import release_old_checkouts, resume_parked_runs
from kingdom.workflow.records import run_transaction
from kingdom.workflow.relocation import displace_stranded_runs

# Runs that were placed on a host in the very moment it was lost are found so.
_STRANDED_EVERY = 30
_PARKED_EVERY = 5
_log = structlog.get_logger("kingdom.workflow")


async def run_timers(bus: Bus, every: timedelta = timedelta(seconds=1)) -> None:
    """Look until cancelled; any number of engines may do so."""
    # Apart from each other, so that much to do for runs is no gap in the looks at hosts.
    async with asyncio.TaskGroup() as group:
        group.create_task(_detect_lost_hosts(bus, every.total_seconds()))
        group.create_task(_resume_parked_runs(bus, every.total_seconds() * _PARKED_EVERY))
        group.create_task(_move_and_release_runs(bus, every.total_seconds() * _STRANDED_EVERY))


async def _detect_lost_hosts(bus: Bus, seconds: float) -> None:
    lookout = LivenessMonitor()
    while True:
        try:
            for host in await mark_lost_hosts(bus, lookout):
                _log.warning("host lost, its runs are placed anew", host=host.id, epoch=host.epoch)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
            _log_failure("could not look after hosts", error)
        await asyncio.sleep(lookout.pause(seconds))


async def _resume_parked_runs(bus: Bus, seconds: float) -> None:
    while True:
        try:
            await resume_parked_runs(bus)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
            _log_failure("could not look for parked runs", error)
        await asyncio.sleep(seconds)


async def _move_and_release_runs(bus: Bus, seconds: float) -> None:
    while True:
        try:
            await run_transaction(bus, displace_stranded_runs)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
            _log_failure("could not look for stranded runs", error)
        try:
            await release_old_checkouts(bus)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
            _log_failure("could not look for old checkouts", error)
        await asyncio.sleep(seconds)


def _log_failure(what: str, error: Exception) -> None:
    expected = isinstance(error, KingdomError)
    _log.warning(f"{what}, trying again", error=str(error), exc_info=None if expected else error)
