"""The state of the court, with the settings and Generals that it depends on."""

import asyncio
from dataclasses import replace

from kingdom.bootstrap import directory_of, generals_directory_of, operations_of
from kingdom.bus.port import Bus
from kingdom.court.heartbeat import ROLES
from kingdom.court.king.context import KingContext
from kingdom.court.package_files import load_packages
from kingdom.court.status import CourtStatus, StatusSources, read_status
from kingdom.realm import Realm
from kingdom.settings import Settings


async def read_current_status(
    bus: Bus, settings: Settings, realm: Realm, running: frozenset[str] = frozenset()
) -> CourtStatus:
    """Return the state of the court. Roles in `running` have a process, but perhaps no heartbeat yet."""
    # The Generals can change while a caller repeats this.
    sources = await asyncio.to_thread(status_sources_of, settings, realm)
    return await read_status(bus, operations_of(bus), replace(sources, running=running))


def status_sources_of(settings: Settings, realm: Realm) -> StatusSources:
    """Return the settings and Generals that the state of the court depends on."""
    loaded = load_packages(generals_directory_of(settings, realm), accepts_strangers=realm.sentinel.accepts_strangers)
    return StatusSources(
        king=KingContext(packages=lambda: loaded.packages, zone=realm.zone, settings=realm.king),
        settings=realm.chamberlain,
        roles=ROLES,
        store=directory_of(settings.database_url),
        broken=loaded.broken,
    )
