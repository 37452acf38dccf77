"""soldiers runs agents."""

import re
import socket
from datetime import timedelta
from pathlib import Path

import structlog

from kingdom.bootstrap import directory_of
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.errors import Misconfigured
from kingdom.realm import Realm, secrets_of
from kingdom.roles.house import Cast, House
from kingdom.settings import Settings, read_environment
from kingdom.soldiers.agent_kinds import AGENT_KINDS, NO_SANDBOX, build_agent_environment
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders

# Part of the name of a stream, in which a dot would end it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_log = structlog.get_logger("kingdom.soldiers")


def cast(house: House) -> Cast:
    """Return what runs agents."""
    soldiers = house.realm.soldiers
    # So transcripts lie in logs/sessions of the realm, where people and the Chamberlain look for them.
    directory = Path(soldiers.directory) if soldiers.directory else house.directory
    host = soldier_host(house.bus, house.settings, soldiers, directory, secrets_of(house.realm), metrics=house.metrics)
    return Cast(parts=(host,))


def soldier_host(
    bus: Bus,
    settings: Settings,
    soldiers: SoldierSettings,
    directory: Path | None,
    secrets: frozenset[str] = frozenset(),
    *,
    metrics: WorkerMetrics | None = None,
) -> SoldierHost:
    """Return a host as settings describe it; `secrets` and the password of the store are never written down."""
    chosen = soldiers.name or socket.gethostname().partition(".")[0]
    if not _NAME.fullmatch(chosen):
        raise Misconfigured(f"{chosen!r} is no name for a host: choose one of letters, digits, - and _ with --name")
    if soldiers.sandbox is SandboxProfile.OFF:
        _log.warning(
            f"agents, setup scripts and checks run WITHOUT A SANDBOX: soldiers.sandbox is off, which {NO_SANDBOX}"
        )
    # The directory of a store of files; beside the work for others.
    beside = directory_of(settings.database_url) or Path()
    folders = HostFolders(directory or beside / "soldiers" / chosen)
    return SoldierHost(
        bus,
        chosen,
        AGENT_KINDS[soldiers.agent].client(soldiers),
        folders,
        slots=soldiers.slots,
        lease=timedelta(seconds=soldiers.lease_seconds),
        agent_environment=build_agent_environment(
            soldiers, read_environment, {*secrets, *secrets_of(Realm(database_url=settings.database_url))}
        ),
        metrics=metrics,
    )
