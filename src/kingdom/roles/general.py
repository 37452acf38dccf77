"""general has assignments done: it takes every run its next step, and performs what its agents ask for."""

import asyncio
from importlib import import_module

from kingdom.bootstrap import operations_of
from kingdom.bus.maintenance import run_retention
from kingdom.bus.worker import Runnable, Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.clock import utc_now
from kingdom.court.chamberlain.retention import store_retention
from kingdom.court.general import reactions as generals
from kingdom.court.general.earlier_names import take_over_slugs
from kingdom.court.general.staff import Staff
from kingdom.court.general.watch import watch as watch_petitions
from kingdom.court.streams import PETITION_GRANTED
from kingdom.roles.house import Cast, House
from kingdom.workflow.reactions import engine
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.watch import watch as watch_hosts

_LOOK_FOR_GENERALS_SECONDS = 2.0


def cast(house: House) -> Cast:
    """Return what has assignments done, and what performs petitions where the realm has a system to perform them in."""
    dispatcher, systems = engine().dispatcher, house.realm.sentinel
    staff = Staff(
        packages=house.packages.by_name,
        channel=house.realm.king.channel,
        zone=house.realm.zone,
        clock=utc_now,
        directory=house.directory,
        absent=[system for system in PETITION_GRANTED if getattr(systems, system) is None],
    )
    generals.register(dispatcher, staff)
    parts: list[Runnable] = [_Generals(house, dispatcher)]
    if systems.github or systems.jira:
        # It brings an HTTP client along, which a realm without such systems does without.
        parts.append(import_module("kingdom.roles.performing").performer(house))
    upkeep = run_retention(operations_of(house.bus), store_retention(house.realm.chamberlain.retention))
    return Cast(parts=tuple(parts), beside=(watch_hosts(house.bus), watch_petitions(house.bus), upkeep))


class _Generals:
    """A worker for the Generals that there are; when others come or go, another worker takes its place."""

    def __init__(self, house: House, dispatcher: Dispatcher) -> None:
        self._house = house
        self._dispatcher = dispatcher
        self._stopping = asyncio.Event()
        self._worker: Worker | None = None

    async def run(self) -> None:
        await take_over_slugs(self._house.bus, self._house.packages.all(), self._house.realm.sentinel)
        while not self._stopping.is_set():
            names = sorted(self._house.packages.by_name())
            streams = (*ENGINE_STREAMS, *generals.streams_of(names))
            self._worker = Worker(self._house.bus, self._dispatcher, streams, metrics=self._house.metrics)
            watching = asyncio.create_task(self._until_others(names))
            try:
                await self._worker.run()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def stop(self, *, at_once: bool = False) -> None:
        self._stopping.set()
        if self._worker:
            self._worker.stop(at_once=at_once)

    async def _until_others(self, names: list[str]) -> None:
        while sorted(self._house.packages.by_name()) == names:  # noqa: ASYNC110 - nobody tells of new files
            await asyncio.sleep(_LOOK_FOR_GENERALS_SECONDS)
        if self._worker:
            self._worker.stop()
