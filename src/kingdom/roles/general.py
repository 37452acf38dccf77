"""The General role runs the engine and all Generals, and performs granted petitions."""

import asyncio
from collections.abc import Mapping

import structlog

from kingdom.bootstrap import operations_of
from kingdom.bus.worker import Runnable, Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.clock import utc_now
from kingdom.court.chamberlain.retention import keep_retention
from kingdom.court.general import reactions as generals
from kingdom.court.general.context import GeneralContext
from kingdom.court.general.slug_migration import migrate_slugs
from kingdom.court.general.timers import run_timers as watch_petitions
from kingdom.court.streams import PETITION_GRANTED
from kingdom.errors import KingdomError
from kingdom.failure_log import log_failure
from kingdom.roles.context import RoleComponents, RoleContext
from kingdom.workflow.reactions import engine
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.timers import run_timers

_PACKAGES_CHECK_SECONDS = 2.0
_ACTOR = "general"
_log = structlog.get_logger("kingdom.court")


def build(context: RoleContext) -> RoleComponents:
    """Return the engine, the Generals, and a petition worker if the realm configures GitHub or Jira."""
    dispatcher, systems = engine().dispatcher, context.realm.sentinel
    general_context = GeneralContext(
        packages=context.packages.by_name,
        channel=context.realm.king.channel,
        zone=context.realm.zone,
        clock=utc_now,
        directory=context.directory,
        unused_systems=[system for system in PETITION_GRANTED if getattr(systems, system) is None],
    )
    generals.register(dispatcher, general_context)
    worker = _GeneralsWorker(context, dispatcher)
    runnables: list[Runnable] = [worker]
    if systems.github or systems.jira:
        from kingdom.roles.petition_worker import (  # noqa: PLC0415 - loads an HTTP client that other realms do not need
            build_petition_worker,
        )

        runnables.append(build_petition_worker(context))
    settings = context.realm.chamberlain.retention
    retention = keep_retention(context.bus, operations_of(context.bus), settings, _ACTOR)
    background = (run_timers(context.bus), watch_petitions(context.bus), retention)
    return RoleComponents(runnables=tuple(runnables), background=background, members=worker.members)


class _GeneralsWorker:
    """Runs a worker for the engine and the current Generals. It replaces the worker when their names change."""

    def __init__(self, context: RoleContext, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._stopping = asyncio.Event()
        self._worker: Worker | None = None

    async def run(self) -> None:
        await migrate_slugs(self._context.bus, self._context.packages.all(), self._context.realm.sentinel)
        while not self._stopping.is_set():
            names = sorted(self._context.packages.by_name())
            streams = (*ENGINE_STREAMS, *generals.streams_of(names))
            self._worker = Worker(self._context.bus, self._dispatcher, streams, metrics=self._context.metrics)
            watching = asyncio.create_task(self._stop_worker_on_change(names))
            try:
                await self._worker.run()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def members(self) -> Mapping[str, bool]:
        """Return the Generals, and whether the worker serves them. A General with a broken package is not served."""
        return self._context.packages.last_loaded() if self._worker else {}

    def stop(self, *, at_once: bool = False) -> None:
        self._stopping.set()
        if self._worker:
            self._worker.stop(at_once=at_once)

    async def _stop_worker_on_change(self, names: list[str]) -> None:
        while not self._have_changed(names):  # noqa: ASYNC110 - new files cause no event
            await asyncio.sleep(_PACKAGES_CHECK_SECONDS)
        if self._worker:
            self._worker.stop()

    def _have_changed(self, names: list[str]) -> bool:
        try:
            return sorted(self._context.packages.by_name()) != names
        except Exception as error:  # noqa: BLE001 - otherwise new Generals would not be noticed any more
            log_failure(_log, "cannot check the Generals, trying again", error, expected=(KingdomError, OSError))
            return False
