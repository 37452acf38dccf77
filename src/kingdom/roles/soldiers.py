"""The soldiers role runs agents on this machine."""

import re
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import structlog

from kingdom.bootstrap import data_directory_of, directory_of, is_embedded, realm_directory_of, run_texts_of
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.errors import Misconfigured
from kingdom.realm import Realm, secrets_of
from kingdom.roles.context import RoleComponents, RoleContext
from kingdom.settings import Settings, read_environment
from kingdom.soldiers.agent_kinds import AGENT_KINDS, NO_SANDBOX_CONSEQUENCE, build_agent_environment
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders

# The host name is part of a stream name, so it cannot contain a dot.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_GUIDE = Path("config", "workspace-claude.md")
_log = structlog.get_logger("kingdom.soldiers")


def build(context: RoleContext) -> RoleComponents:
    """Return the host that runs agents."""
    soldiers = context.realm.soldiers
    # By default transcripts are in logs/sessions of the realm, where people and the Chamberlain expect them.
    directory = Path(soldiers.directory) if soldiers.directory else context.directory
    secrets = secrets_of(context.realm)
    host = soldier_host(context.bus, context.settings, soldiers, directory, secrets, metrics=context.metrics)
    return RoleComponents(runnables=(host,))


def soldier_host(
    bus: Bus,
    settings: Settings,
    soldiers: SoldierSettings,
    directory: Path | None,
    secrets: frozenset[str] = frozenset(),
    *,
    metrics: WorkerMetrics | None = None,
) -> SoldierHost:
    """Return a host with these settings. The host never writes `secrets` or the password of the store to a file."""
    name = soldiers.name or socket.gethostname().partition(".")[0]
    if not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{name!r} is not a valid host name: set soldiers.name in kingdom.yaml, or --name of `kingdom role host`,"
            " to at most 60 letters, digits, - and _, beginning with a letter or digit"
        )
    if soldiers.sandbox is SandboxProfile.OFF:
        _log.warning(
            "agents, setup scripts and checks run WITHOUT A SANDBOX: soldiers.sandbox is off, which"
            f" {NO_SANDBOX_CONSEQUENCE}"
        )
    # The directory of a file store, or the current directory.
    base = directory_of(settings.database_url) or Path()
    results = data_directory_of(settings) / "state" / "results"
    folders = HostFolders(directory or base / "soldiers" / name, results)
    agent_environment = build_agent_environment(
        soldiers, read_environment, {*secrets, *secrets_of(Realm(database_url=settings.database_url))}
    )
    return SoldierHost(
        bus,
        name,
        AGENT_KINDS[soldiers.agent].client(soldiers),
        folders,
        slots=soldiers.slots,
        lease=timedelta(seconds=soldiers.lease_seconds),
        agent_environment=replace(agent_environment, guide=realm_directory_of(settings) / _GUIDE),
        metrics=metrics,
        # An embedded server is used by one machine, on which transcripts can be read from their files.
        texts=None if is_embedded(settings.database_url) else run_texts_of(bus),
    )
