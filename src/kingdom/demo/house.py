"""The house of the demo: one directory with a store, Generals, a toy repository, and every role as a process."""

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

from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.court.heartbeat import ROLES
from kingdom.court.package_files import make_private
from kingdom.demo.outside import BOT, CHANNEL, PULL, REPO, Outside, opened_outside
from kingdom.demo.toy import make_repository
from kingdom.realm import read_realm
from kingdom.roles import declared
from kingdom.settings import FILE, Settings, environment_of_children
from kingdom.soldiers.leftovers import end_leftovers
from kingdom.standins.jira import EMAIL, TOKEN
from kingdom.supervisor.processes import RoleProcesses, only_one
from kingdom.workflow import registry
from kingdom.workflow.model.git import Git

_GENERALS = Path(__file__).with_name("generals")
_GIT = "acme-shop"
_ACTOR = "demo"
_ENDING_SECONDS = 5.0
_LINES_KEPT = 20
_NEVER = 1000


@dataclass(frozen=True, slots=True)
class House:
    """A court that runs: its directory, its store, its processes, and the world around it."""

    directory: Path
    settings: Settings
    bus: Bus
    processes: RoleProcesses
    outside: Outside
    # The last lines of the roles, for whoever asks why nothing happens.
    lines: deque[str]

    @property
    def realm(self) -> Path:
        """Return the store."""
        return self.directory / "realm"

    def pid(self, role: str) -> int | None:
        """Return the process of a role, while it runs."""
        return self.processes.children[role].pid


@asynccontextmanager
async def opened_house(directory: Path) -> AsyncIterator[House]:
    """Make everything in a directory that is there and empty, and start the roles; all of them end with the block."""
    file, realm = directory / FILE, directory / "realm"
    settings = Settings.read(file=file, database_url=f"file:{realm}")
    (directory / "tmp").mkdir()
    repository = directory / "repositories" / f"{REPO}.git"
    await make_repository(repository, PULL)
    shutil.copytree(_GENERALS, realm / "generals")
    make_private(realm / "generals")
    async with AsyncExitStack() as stack:
        outside = await stack.enter_async_context(opened_outside(directory / "outside"))
        file.write_text(yaml.safe_dump(_realm_settings(outside), sort_keys=False))
        application = declared(read_realm(file))
        bus = await stack.enter_async_context(open_bus(settings.database_url, application.topology, application.kinds))
        url = str(repository)
        git = Git(id=_GIT, name=_GIT, url=url, default_branch="main", checkpoint_remote=url, repo=REPO)
        await registry.create_git(bus, git, actor=_ACTOR)
        stack.enter_context(only_one(realm))
        lines: deque[str] = deque(maxlen=_LINES_KEPT)

        def hear(role: str, line: bytes) -> None:
            lines.append(f"{role}: {line.decode(errors='replace')}")

        def command(role: str) -> Sequence[str]:
            # What lies in the current directory is no part of the program.
            return (sys.executable, "-P", "-m", "kingdom", "role", role, "--config", str(file), "--json-logs")

        environment = {**environment_of_children(settings), "TMPDIR": str(directory / "tmp")}
        processes = RoleProcesses(ROLES, command, environment, hear)
        stack.callback(end_leftovers, realm)
        await stack.enter_async_context(_running(processes))
        yield House(directory, settings, bus, processes, outside, lines)


@asynccontextmanager
async def _running(processes: RoleProcesses) -> AsyncIterator[None]:
    running, started = asyncio.create_task(processes.run()), asyncio.create_task(processes.started.wait())
    try:
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            # It says why it could not begin.
            await running
        yield
    finally:
        processes.stop()
        try:
            await asyncio.wait([running], timeout=_ENDING_SECONDS)
        finally:
            # Nothing here is worth waiting for any longer.
            running.cancel()
            started.cancel()
            await asyncio.gather(running, started, return_exceptions=True)


def _realm_settings(outside: Outside) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "database_url": "file:realm",
        "channel": CHANNEL,
        # What a killed process had in hand goes on after so long: a demo is for the impatient.
        "lease_seconds": 5,
        "heartbeat_seconds": 1,
        "sentinel": {
            "github": {
                "token": "github-token",
                "logins": [BOT],
                "api_url": outside.url("github"),
                "poll_seconds": 1,
                "repos": [REPO],
            },
            "jira": {"url": outside.url("jira"), "email": EMAIL, "token": TOKEN, "poll_seconds": 1},
        },
        "king": {"every_seconds": 1, "soldiers_per_repo": 3},
        # Its own scripts in its own repository are all that runs here, so it needs no sandbox where none can be made.
        "soldiers": {"name": "soldiers", "slots": 3, "sandbox": "strict" if shutil.which("bwrap") else "off"},
        # How busy this machine is must not hold up a demo.
        "chamberlain": {
            "every_seconds": 2,
            "health": {"yellow": _NEVER, "orange": _NEVER, "red": _NEVER, "disk_yellow": _NEVER, "disk_orange": _NEVER},
        },
    }
    if outside.has_slack:
        slack = {
            "bot_token": "xoxb-standin",
            "app_token": "xapp-standin",
            "base_url": f"{outside.url('slack')}/api/",
            "settles_after_seconds": 1,
            "call_seconds": 3,
        }
        settings["envoy"] = {"every_seconds": 2, "slack": slack}
    return settings
