"""A court for benches: its stand-ins, settings, Generals and processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.servers import free_port
from kingdom.bootstrap import migrate

ROLES = ("chamberlain", "envoy", "soldiers", "general", "king", "sentinel")
STANDINS = ("github", "slack", "jira")
REPO = "acme/shop"
CHANNEL = "dev"
SECRET = "hush"  # noqa: S105 - it guards nothing
PATIENCE_SECONDS = 120.0
# A busy machine takes long to load the code.
_STARTING_SECONDS = 180.0
_ENDING_SECONDS = 60.0
_POLL_SECONDS = 0.05
# The number of pull requests, more than any measurement needs.
_PULLS = 2000
_ROOT = Path(__file__).parents[2]


class CourtProcesses:
    """The processes of a court by name. All their files are below one directory.

    If `ports` are given, stand-ins that were started elsewhere listen on them.
    """

    def __init__(
        self, directory: Path, url: str, session: aiohttp.ClientSession, ports: Mapping[str, int] | None = None
    ) -> None:
        # Agents are recognized by their working directory.
        self.directory = directory.resolve()
        self.url = url
        self.webhook_port = free_port()
        self._session = session
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ports = ports or {name: free_port() for name in STANDINS}
        self._broken: dict[str, tuple[str, str]] = {}

    @property
    def realm(self) -> Path:
        """Return the directory of the file store, or, with a database, of the files for people."""
        return self.directory / "realm"

    @property
    def source(self) -> Path:
        """Return the only repository."""
        return self.directory / "remotes" / f"{REPO}.git"

    def address(self, standin: str) -> str:
        """Return the address of a stand-in."""
        return f"http://127.0.0.1:{self._ports[standin]}"

    def pid(self, name: str) -> int:
        """Return the process id of a role or a stand-in."""
        return self._processes[name].pid

    def names(self) -> tuple[str, ...]:
        """Return the names of all running processes."""
        return tuple(name for name, process in self._processes.items() if process.returncode is None)

    def write_settings(self, changes: Mapping[str, Any] | None = None) -> None:
        """Write the settings file, with `changes` merged into each section."""
        settings: dict[str, Any] = {
            "database_url": self.url,
            "generals": "generals",
            "sentinel": {
                "github": {
                    "token": "github-token",
                    "logins": ["kingdom-bot"],
                    "repos": ["acme/*"],
                    "api_url": self.address("github"),
                    "poll_seconds": 1,
                    "webhook": {"secrets": [SECRET], "port": self.webhook_port},
                },
                "jira": {
                    "url": self.address("jira"),
                    "email": "kingdom@example.com",
                    "token": "a-jira-token",
                    "poll_seconds": 1,
                },
            },
            "king": {"every_seconds": 1, "soldiers": 8, "soldiers_per_repo": 8, "channel": CHANNEL},
            "soldiers": {"name": "host-a", "slots": 8, "directory": str(self.directory / "soldiers")},
            "envoy": {
                "channel": CHANNEL,
                "slack": {
                    "bot_token": "xoxb-standin",
                    "app_token": "xapp-standin",
                    "base_url": f"{self.address('slack')}/api/",
                    "settles_after_seconds": 1,
                    "call_seconds": 3,
                },
            },
            # The load of this machine must not affect the measurement.
            "chamberlain": {
                "every_seconds": 1,
                "channel": CHANNEL,
                "health": {"yellow": 1000, "orange": 1000, "red": 1000, "disk_yellow": 1000, "disk_orange": 1000},
            },
        }
        settings = _merge(settings, changes or {})
        (self.directory / "kingdom.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    def write_general(self, name: str, general: Mapping[str, Any], workflow: Mapping[str, Any]) -> None:
        """Write the package of a General."""
        folder = self.directory / "generals" / name
        folder.mkdir(parents=True, exist_ok=True)
        described = {"name": name, "description": "Does what its script says.", **general}
        (folder / "general.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
        (folder / "workflow.yaml").write_text(yaml.safe_dump(dict(workflow), sort_keys=False))

    def break_role(self, role: str, variant: str, module: str = "bench.court.variants") -> None:
        """Run a role with a broken variant from now on. The role is started through `module`, which breaks it."""
        self._broken[role] = (module, variant)

    async def start(self, *names: str) -> None:
        """Start stand-ins and roles, and wait until each is ready."""
        for name in names:
            await (self._start_standin(name) if name in STANDINS else self._start_role(name))

    async def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self._processes.pop(name)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def end(self) -> None:
        """End everything, the roles gracefully."""
        for name in (*reversed(ROLES), *STANDINS):
            process = self._processes.get(name)
            if process and process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), _ENDING_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._processes.clear()

    async def until_listens(self, standin: str) -> None:
        """Wait until a stand-in accepts requests."""

        async def answers() -> bool:
            try:
                async with self._session.get(f"{self.address(standin)}/_control/calls") as answer:
                    return answer.ok
            except aiohttp.ClientError:
                return False

        await eventually(answers, f"{standin} listens", _STARTING_SECONDS)

    async def people(self, standin: str, what: str, body: Any = None, **doing: Any) -> Any:
        """Perform an action at a stand-in that people perform at the real service."""
        document = doing if body is None else body
        async with self._session.post(f"{self.address(standin)}/_control/{what}", json=document) as answer:
            assert answer.ok, f"{what}: {await answer.text()}"
            return await answer.json()

    async def look(self, standin: str, what: str) -> Any:
        """Read the `state` or the `calls` of a stand-in."""
        async with self._session.get(f"{self.address(standin)}/_control/{what}") as answer:
            return await answer.json()

    async def calls(self, standin: str, call: str) -> list[dict[str, Any]]:
        """Return the executed calls of one kind at a stand-in."""
        return [each for each in await self.look(standin, "calls") if each["call"] == call]

    async def kingdom(self, *words: str) -> Any:
        """Run a `kingdom` command with --json, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kingdom", *words, "--json", "--database-url", self.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.directory,
            env=self._environment(),
        )
        answer, complaint = await process.communicate()
        assert process.returncode == 0, f"{words}: {complaint.decode()}"
        return json.loads(answer) if answer.strip() else None

    def log(self, name: str) -> str:
        """Return the output of a process."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    async def _start_standin(self, name: str) -> None:
        words = ("--port", str(self._ports[name]), "--state", str(self.directory / f"{name}.json"))
        await self._spawn(name, f"kingdom.standins.{name}", *words)

        await self.until_listens(name)

    async def _start_role(self, name: str) -> None:
        before = self.log(name).count("role started") if (self.directory / f"{name}.log").exists() else 0
        module = self._broken.get(name, ("kingdom",))
        await self._spawn(name, *module, "role", name, "--config", str(self.directory / "kingdom.yaml"))

        async def says() -> bool:
            process = self._processes.get(name)
            if process is None:
                # A process that is killed during its start does not become ready.
                return True
            assert process.returncode is None, self.log(name)[-3000:]
            return self.log(name).count("role started") > before

        await eventually(says, f"{name} starts", _STARTING_SECONDS)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # Share compiled bytecode between processes, which saves most of the start time.
        compiled = str(self.directory / "compiled")
        return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT), "PYTHONPYCACHEPREFIX": compiled}

    async def _spawn(self, name: str, module: str, *words: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *words),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment(),
            )


@asynccontextmanager
async def opened(directory: Path, url: str = "") -> AsyncIterator[CourtProcesses]:
    """Prepare a court without processes: its store, repository and settings."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    async with aiohttp.ClientSession() as session:
        court = CourtProcesses(directory, url or f"file:{directory / 'realm'}", session)
        make_remote(court.source)
        await migrate(court.url)
        court.write_settings()
        source = str(court.source)
        await court.kingdom("git", "create", "acme-shop", source, "--repo", REPO, "--checkpoint-remote", source)
        try:
            yield court
        finally:
            await court.end()


async def eventually(ready: Callable[[], Awaitable[Any]], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until a condition has a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := await ready()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(_POLL_SECONDS)
    return found


def make_remote(remote: Path, pulls: int = _PULLS) -> None:
    """Create a bare repository with one commit, and with pull requests whose head is that commit."""
    work = remote.with_suffix(".work")
    remote.parent.mkdir(parents=True, exist_ok=True)
    identity = ("-c", "user.name=Bench", "-c", "user.email=bench@localhost")
    for words in (
        ("init", "-q", "-b", "main", str(work)),
        ("-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "Begin"),
        ("clone", "-q", "--bare", str(work), str(remote)),
    ):
        subprocess.run(["git", *words], check=True, capture_output=True)
    refs = "".join(f"create refs/pull/{number}/head refs/heads/main\n" for number in range(1, pulls + 1))
    for command, lines in ((("update-ref", "--stdin"), refs), (("pack-refs", "--all"), "")):
        subprocess.run(["git", "-C", str(remote), *command], input=lines, text=True, check=True, capture_output=True)


def _merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        name: _merge(settings[name], change) if isinstance(change, Mapping) and name in settings else change
        for name, change in changes.items()
    }
    return {**settings, **parts}
