"""Run the court of the demo: a directory with a store, Generals and a toy repository, and a process for each role."""

import asyncio
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kingdom.bootstrap import generals_directory_of, open_bus
from kingdom.bus.port import Bus
from kingdom.court.heartbeat import ROLES
from kingdom.court.package_files import make_private
from kingdom.demo.external_services import BOT, CHANNEL, PULL_REQUEST, REPO, DemoServices, start_services
from kingdom.demo.toy_repository import create_repository
from kingdom.realm import Realm, read_realm
from kingdom.roles import declare_application
from kingdom.settings import FILE, Settings, environment_of_children
from kingdom.soldiers.processes.leftovers import kill_leftover_processes
from kingdom.standins.jira.application import EMAIL, TOKEN
from kingdom.supervisor.processes import RoleProcesses, hold_realm
from kingdom.workflow import registry
from kingdom.workflow.model.resources.git import Git

_GENERALS = Path(__file__).with_name("generals")
_GIT = "acme-shop"
_ACTOR = "demo"
# The roles get this time to stop before they are killed.
_STOP_SECONDS = 5.0
_LINES_KEPT = 20
# A threshold in percent that is never reached.
_NEVER = 1000


@dataclass(frozen=True, slots=True)
class DemoCourt:
    """A running court: its directory, its store, its processes and the stand-ins around it."""

    directory: Path
    settings: Settings
    bus: Bus
    processes: RoleProcesses
    services: DemoServices
    # The last log lines of the roles, shown when the demo times out.
    log_lines: deque[str]

    @property
    def realm(self) -> Path:
        """Return the directory of logs and checkouts; by default the store is in it too."""
        return self.directory / "realm"

    def pid(self, role: str) -> int | None:
        """Return the process id of a role, or None while it does not run."""
        return self.processes.children[role].pid


@asynccontextmanager
async def open_demo_court(directory: Path, database_url: str = "") -> AsyncIterator[DemoCourt]:
    """Create everything in an empty directory and start the roles. The roles end with the block.

    `database_url` is the address of an empty store; by default the store is in the directory too.
    """
    file, realm = directory / FILE, directory / "realm"
    settings = Settings.read(file=file, database_url=database_url or f"file:{realm}")
    (directory / "tmp").mkdir()
    repository = directory / "repositories" / f"{REPO}.git"
    await create_repository(repository, PULL_REQUEST)
    generals = generals_directory_of(settings, Realm())
    shutil.copytree(_GENERALS, generals)
    make_private(generals)
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(start_services(directory / "outside"))
        file.write_text(yaml.safe_dump(_realm_settings(services), sort_keys=False))
        application = declare_application(read_realm(file))
        bus = await stack.enter_async_context(open_bus(settings.database_url, application.topology, application.kinds))
        url = str(repository)
        git = Git(id=_GIT, name=_GIT, url=url, default_branch="main", checkpoint_remote=url, repo=REPO)
        await registry.create_git(bus, git, actor=_ACTOR)
        stack.enter_context(hold_realm(realm))
        log_lines: deque[str] = deque(maxlen=_LINES_KEPT)

        def keep_line(role: str, line: bytes) -> None:
            log_lines.append(f"{role}: {line.decode(errors='replace')}")

        def command(role: str) -> Sequence[str]:
            # -P: do not import modules from the current directory.
            return (sys.executable, "-P", "-m", "kingdom", "role", role, "--config", str(file), "--json-logs")

        environment = {**environment_of_children(settings), "TMPDIR": str(directory / "tmp")}
        processes = RoleProcesses(ROLES, command, environment, keep_line)
        stack.callback(kill_leftover_processes, realm)
        await stack.enter_async_context(_running(processes))
        yield DemoCourt(directory, settings, bus, processes, services, log_lines)


@asynccontextmanager
async def _running(processes: RoleProcesses) -> AsyncIterator[None]:
    running, started = asyncio.create_task(processes.run()), asyncio.create_task(processes.started.wait())
    try:
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            # This raises the error that kept the processes from starting.
            await running
        yield
    finally:
        processes.stop()
        try:
            await asyncio.wait([running], timeout=_STOP_SECONDS)
        finally:
            # A slow process is killed, because the data is temporary anyway.
            running.cancel()
            started.cancel()
            await asyncio.gather(running, started, return_exceptions=True)


def _realm_settings(services: DemoServices) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "database_url": "file:realm",
        "channel": CHANNEL,
        # Because the lease is short, another process soon continues the work of a killed process.
        "lease_seconds": 5,
        "heartbeat_seconds": 1,
        "sentinel": {
            "github": {
                "token": "github-token",
                "logins": [BOT],
                "api_url": services.url("github"),
                "poll_seconds": 1,
                "repos": [REPO],
            },
            "jira": {"url": services.url("jira"), "email": EMAIL, "token": TOKEN, "poll_seconds": 1},
        },
        "king": {"every_seconds": 1, "soldiers_per_repo": 3},
        # The demo runs only its own scripts, so it may run without a sandbox if bubblewrap is missing.
        "soldiers": {"name": "soldiers", "slots": 3, "sandbox": "strict" if shutil.which("bwrap") else "off"},
        # A busy machine must not delay the demo.
        "chamberlain": {
            "every_seconds": 2,
            "health": {"yellow": _NEVER, "orange": _NEVER, "red": _NEVER, "disk_yellow": _NEVER, "disk_orange": _NEVER},
        },
    }
    if services.has_slack:
        slack = {
            "bot_token": "xoxb-standin",
            "app_token": "xapp-standin",
            "base_url": f"{services.url('slack')}/api/",
            "settles_after_seconds": 1,
            "call_seconds": 3,
        }
        settings["envoy"] = {"every_seconds": 2, "slack": slack}
    return settings
