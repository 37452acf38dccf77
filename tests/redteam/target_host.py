"""A host to attack: the run of the hostile agent, another run, and a process that has a secret."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from aiohttp import web

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import checkout_paths
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.processes import die_with_parent
from kingdom.soldiers.processes.program import run_program
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from tests.integration.soldiers.processes import MARK, marked
from tests.integration.soldiers.sources import a_tree, bare, make_source
from tests.patience import PATIENCE_SECONDS

SECRET_BEGINS, KEY_BEGINS = "host-secret-", "sk-host-"
SECRET, KEY = f"{SECRET_BEGINS}4711", f"{KEY_BEGINS}0815"
LIMITS = ResourceLimits(memory_bytes=400 << 20, processes=100, file_bytes=16 << 20)
_HERE = Path(__file__).parent
_PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class TrickResult:
    """The result of a trick, according to the agent and to the host afterwards."""

    succeeded: bool
    evidence: str


class TargetHost:
    """Everything that a hostile agent might attack; created by `opened`."""

    def __init__(self, folder: Path, profile: SandboxProfile) -> None:
        self.folder = folder
        self.profile = profile
        self.trees = RunCheckouts(folder / "repositories", pause=timedelta(milliseconds=10))
        self.source = make_source(folder / "app", files=3)
        self.tree = self._a_tree("tree1")
        self.other = self._a_tree("other")
        self.space, self.home, self.reports = (folder / name for name in ("space", "home", "reports"))
        self.secret_file = folder / "secret.txt"
        self.asked: list[str] = []
        self.victim_report: dict[str, object] = {}
        self.proxies: list[ModelProxy] = []
        self._mark = uuid4().hex

    @property
    def clone(self) -> Path:
        """Return the clone that both runs share."""
        return bare(self.folder, self.tree)

    async def create_files(self) -> None:
        """Create the folders, the secrets and the checkouts."""
        for folder in (self.space, self.home, self.reports):
            folder.mkdir()
        self.secret_file.write_text(SECRET)
        (self.reports / "report.md").write_text("What was found.\n")
        await self.trees.prepare([self.tree, self.other])
        (self.other.path / "plans.txt").write_text(SECRET)

    async def attempt(self, trick: str) -> TrickResult:
        """Let a hostile agent try a trick in its sandbox, then look for changes on the host."""
        before = self._picture()
        finished = await run_program(
            [sys.executable, "-I", "-S", str(_HERE / "hostile_agent.py"), json.dumps(self._targets()), trick],
            cwd=self.space,
            environment=self._environment(),
            timeout=_PATIENCE,
            sandbox=self._sandbox(),
        )
        changed = sorted(name for name, what in self._picture().items() if before.get(name, what) != what)
        if changed:
            return TrickResult(succeeded=True, evidence=f"changed: {', '.join(changed)}")
        try:
            report = json.loads(finished.output.splitlines()[-1])
        except (ValueError, IndexError):
            return TrickResult(succeeded=False, evidence=f"it ended with exit code {finished.code}")
        assert report["succeeded"] is not None, f"whether {trick} succeeds is unclear: {report['evidence']}"
        return TrickResult(succeeded=report["succeeded"], evidence=" ".join(report["evidence"].split())[:200])

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as the vendor, quoting the request, so a leaked key is visible."""
        self.asked.append(f"{request.method} {request.rel_url}")
        document = await request.json()
        got = {name: value for name, value in request.headers.items() if document.get("complain") or "key" not in name}
        reported = {"headers": got, "query": dict(request.query)}
        return web.json_response(reported, status=400 if document.get("complain") else 200)

    def _a_tree(self, name: str) -> CheckoutSpec:
        return a_tree(self.folder, self.source, name)

    def _sandbox(self) -> Sandbox:
        return build_agent_sandbox(
            self.profile,
            space=self.space,
            home=self.home,
            checkouts=[checkout_paths(self.tree.path, self.clone / "objects")],
            reports=self.reports,
            tools=[_HERE],
            model_proxy=self.proxies[0],
            limits=LIMITS if self.profile is not SandboxProfile.OFF else ResourceLimits(),
        )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": self._sandbox().url,
            MARK: self._mark,
        }

    def _targets(self) -> dict[str, str]:
        known = {
            "host": self.folder,
            "secret_file": self.secret_file,
            "tree": self.tree.path,
            "other_tree": self.other.path,
            "clone": self.clone,
            "reports": self.reports,
            "space": self.space,
            "become": die_with_parent.__file__,
            "proxy": self.proxies[0].socket,
            "proxy_url": self._sandbox().url,
            "other_proxy": self.proxies[1].socket,
            "secret_begins": SECRET_BEGINS,
            "key_begins": KEY_BEGINS,
            **self.victim_report,
        }
        return {name: str(value) for name, value in known.items()}

    def _picture(self) -> dict[str, str]:
        """Return the state that an agent must not change, and the processes that must not survive it."""
        files = [
            *(
                self.clone / name
                for name in ("config", "hooks/post-checkout", "objects/info/alternates", "packed-refs")
            ),
            *(path for path in (self.clone / "refs").rglob("*") if path.is_file()),
            *(path for path in (self.clone / "objects").rglob("*") if path.is_file()),
            *(self.tree.path / ".git", self.other.path / "file0.txt", self.reports / "report.md", self.secret_file),
            *(self.folder / "planted", Path("/usr/bin/planted-by-agent"), Path(die_with_parent.__file__)),
        ]
        picture = {
            str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path): _digest(path)
            for path in files
        }
        victim = Path(f"/proc/{self.victim_report['victim_pid']}/stat")
        alive = victim.exists() and victim.read_text().rpartition(")")[2].split()[0] != "Z"
        return picture | {"the victim": str(alive), "processes left": str(marked(self._mark))}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return type(error).__name__


@asynccontextmanager
async def opened(folder: Path, profile: SandboxProfile) -> AsyncIterator[TargetHost]:
    """Create a host whose agents run under a profile."""
    host = TargetHost(folder, profile)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", host.answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_HERE / "victim.py"), str(folder)),
        env={"HOST_SECRET": SECRET},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        vendor = f"http://127.0.0.1:{runner.addresses[0][1]}"
        upstream = Upstream(vendor=Vendor.ANTHROPIC, url=vendor, key=KEY)
        host.proxies = [
            ModelProxy(folder / name, [upstream], on_loopback=profile is not SandboxProfile.STRICT)
            for name in ("gate", "other-gate")
        ]
        for proxy in host.proxies:
            await proxy.open()
        assert victim.stdout is not None
        host.victim_report = json.loads(await asyncio.wait_for(victim.stdout.readline(), _PATIENCE.total_seconds()))
        await host.create_files()
        yield host
    finally:
        for proxy in host.proxies:
            await proxy.close()
        await runner.cleanup()
        if victim.returncode is None:
            await victim.communicate(b"")
        await victim.wait()


async def released(host: TargetHost) -> str:
    """Release the checkout of the agent; return the reason if that is refused."""
    try:
        await host.trees.release(host.tree, "end")
    except ProgramFailed as error:
        return f"refused: {error}"
    return ""
