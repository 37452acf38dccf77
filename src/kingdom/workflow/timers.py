"""Periodic work of the engine: detect lost hosts, move or resume waiting runs, release old checkouts."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from kingdom.bus.port import Bus
from kingdom.failure_log import log_failure
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import mark_lost_hosts
from kingdom.workflow.lifecycle import release_old_checkouts, resume_parked_runs
from kingdom.workflow.records import run_transaction
from kingdom.workflow.relocation import displace_stranded_runs

# Multiples of the period of the timers.
_PARKED_EVERY = 5
# The reaction to a lost host moves its runs. This timer moves the runs that then found no host, and those that were
# placed on the lost host during that reaction.
_STRANDED_EVERY = 30
_log = structlog.get_logger("kingdom.workflow")


async def run_timers(bus: Bus, every: timedelta = timedelta(seconds=1)) -> None:
    """Run all timers until cancelled. Several engines may run them at the same time."""
    # The tasks are separate, so a long list of runs does not delay the detection of lost hosts.
    async with asyncio.TaskGroup() as group:
        group.create_task(_detect_lost_hosts(bus, every.total_seconds()))
        group.create_task(_resume_parked_runs(bus, every.total_seconds() * _PARKED_EVERY))
        group.create_task(_move_and_release_runs(bus, every.total_seconds() * _STRANDED_EVERY))


async def _detect_lost_hosts(bus: Bus, seconds: float) -> None:
    monitor = LivenessMonitor()

    async def act() -> None:
        for host in await mark_lost_hosts(bus, monitor):
            _log.warning("host lost, its runs are moved to other hosts", host=host.id, epoch=host.epoch)

    while True:
        await _try(act, "could not check the hosts")
        await asyncio.sleep(monitor.pause_seconds(seconds))


async def _resume_parked_runs(bus: Bus, seconds: float) -> None:
    while True:
        await _try(lambda: resume_parked_runs(bus), "could not resume parked runs")
        await asyncio.sleep(seconds)


async def _move_and_release_runs(bus: Bus, seconds: float) -> None:
    while True:
        await _try(lambda: run_transaction(bus, displace_stranded_runs), "could not move runs of lost hosts")
        await _try(lambda: release_old_checkouts(bus), "could not release old checkouts")
        await asyncio.sleep(seconds)


async def _try(act: Callable[[], Awaitable[object]], message: str) -> None:
    try:
        await act()
    except Exception as error:  # noqa: BLE001 - a timer must survive every error
        log_failure(_log, f"{message}, trying again", error)
