"""What each role is made of: from the settings of a realm to what runs in one process."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from kingdom.bootstrap import operations_of
from kingdom.bus.app import Application
from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.maintenance import maintain
from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.port import Bus
from kingdom.bus.stream import Topology
from kingdom.bus.worker import Part, Worker
from kingdom.clock import utc_now
from kingdom.court import records
from kingdom.court.chamberlain.chamberlain import Chamberlain
from kingdom.court.chamberlain.records import KINDS as CHAMBERLAIN_KINDS
from kingdom.court.chamberlain.retention import store_retention, with_retention
from kingdom.court.envoy.envoy import Envoy
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.general import reactions as generals
from kingdom.court.general.staff import Staff
from kingdom.court.general.watch import watch as watch_petitions
from kingdom.court.heartbeat import HEARTBEATS
from kingdom.court.king import reactions as kings
from kingdom.court.king.records import KINDS as KING_KINDS
from kingdom.court.king.terms import Terms
from kingdom.court.king.watch import watch as watch_as_king
from kingdom.court.live_packages import LivePackages
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.petitions.github import GithubApi, GithubPetitions
from kingdom.court.petitions.jira import JiraApi, JiraPetitions
from kingdom.court.sentinel.records import KINDS as SENTINEL_KINDS
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.streams import PETITION_GRANTED, STREAMS
from kingdom.court.streams import PETITIONS as PETITION_STREAM
from kingdom.realm import Realm
from kingdom.soldiers.host import SoldierHost
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.watch import watch as watch_hosts

KINDS = (
    *WORKFLOW_KINDS,
    *records.KINDS,
    *KING_KINDS,
    *SENTINEL_KINDS,
    *CHAMBERLAIN_KINDS,
    *(PETITIONS, ENVOYS, HEARTBEATS),
)
_LOOK_FOR_GENERALS_SECONDS = 2.0


def declared(realm: Realm) -> Application:
    """Return the streams and records of the whole court, kept for as long as the realm says."""
    retention, lease = realm.chamberlain.retention, timedelta(seconds=realm.lease_seconds)
    topology = Topology(replace(stream, lease=lease) for stream in STREAMS)
    return Application(topology, Dispatcher(), with_retention(KINDS, retention), store_retention(retention))


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a role needs to begin: the store, the settings, the Generals, and where files for people go."""

    bus: Bus
    realm: Realm
    packages: LivePackages
    host: Callable[[], SoldierHost]
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """What plays a role: parts that run until they are stopped, and what goes on beside them."""

    parts: tuple[Part, ...]
    beside: tuple[Coroutine[Any, Any, None], ...] = ()


def sentinel(house: House, _: AsyncExitStack) -> Cast:
    """Watch what happens outside."""
    return Cast(parts=(Sentinel(house.bus, house.realm.sentinel),))


def king(house: House, _: AsyncExitStack) -> Cast:
    """Decide who gets what, and when."""
    dispatcher, realm = Dispatcher(), house.realm
    terms = Terms(settings=realm.king, packages=house.packages.all, zone=realm.zone)
    kings.king(realm.king, house.packages.all, realm.zone)(dispatcher)
    # Two at a time would only rerun each other: both write the quotas.
    worker = Worker(house.bus, dispatcher, kings.STREAMS, concurrency=1)
    return Cast(parts=(worker,), beside=(watch_as_king(house.bus, terms),))


def general(house: House, stack: AsyncExitStack) -> Cast:
    """Have assignments done: take every run its next step, and perform what its agents ask for."""
    dispatcher = engine().dispatcher
    staff = Staff(
        packages=house.packages.by_name,
        channel=house.realm.king.channel,
        zone=house.realm.zone,
        clock=utc_now,
        directory=house.directory,
    )
    generals.register(dispatcher, staff)
    parts: list[Part] = [_Generals(house, dispatcher)]
    if performing := _performing(house.realm, stack):
        parts.append(Worker(house.bus, performing, [PETITION_STREAM.name]))
    upkeep = maintain(
        operations_of(house.bus),
        BacklogMetrics(CollectorRegistry()),
        ENGINE_STREAMS,
        retention=declared(house.realm).retention,
    )
    return Cast(parts=tuple(parts), beside=(watch_hosts(house.bus), watch_petitions(house.bus), upkeep))


def soldiers(house: House, _: AsyncExitStack) -> Cast:
    """Run agents."""
    return Cast(parts=(house.host(),))


def envoy(house: House, _: AsyncExitStack) -> Cast:
    """Tell people, and ask them."""
    return Cast(parts=(Envoy(house.bus, house.realm.envoy, zone=house.realm.zone),))


def chamberlain(house: House, _: AsyncExitStack) -> Cast:
    """Watch over the house."""
    watching = Chamberlain(
        house.bus,
        operations_of(house.bus),
        house.realm.chamberlain,
        zone=house.realm.zone,
        directory=house.directory,
    )
    return Cast(parts=(watching,))


ROLES: Mapping[str, Callable[[House, AsyncExitStack], Cast]] = {
    "chamberlain": chamberlain,
    "envoy": envoy,
    "soldiers": soldiers,
    "general": general,
    "king": king,
    "sentinel": sentinel,
}


class _Generals:
    """A worker for the Generals that there are; when others come or go, another worker takes its place."""

    def __init__(self, house: House, dispatcher: Dispatcher) -> None:
        self._house = house
        self._dispatcher = dispatcher
        self._stopping = asyncio.Event()
        self._worker: Worker | None = None

    async def run(self) -> None:
        while not self._stopping.is_set():
            names = sorted(self._house.packages.by_name())
            streams = (*ENGINE_STREAMS, *generals.streams_of(names))
            self._worker = Worker(self._house.bus, self._dispatcher, streams)
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


def _performing(realm: Realm, stack: AsyncExitStack) -> Dispatcher | None:
    """Return what performs petitions, as far as the realm can reach the systems that they are for."""
    dispatcher = Dispatcher()
    github, jira = realm.sentinel.github, realm.sentinel.jira
    if github:
        api = GithubApi(github.api_url, github.token)
        stack.push_async_callback(api.close)
        dispatcher.effect(PETITION_GRANTED["github"], GithubPetitions(api))
    if jira:
        tickets = JiraApi(jira.url, jira.email, jira.token)
        stack.push_async_callback(tickets.close)
        dispatcher.effect(PETITION_GRANTED["jira"], JiraPetitions(tickets))
    return dispatcher if github or jira else None
