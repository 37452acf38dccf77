"""A house with something to lose: a run of its own for the agent, another run, and a process that has a secret."""

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
from kingdom.soldiers import become
from kingdom.soldiers.checkout import place_of
from kingdom.soldiers.process import run_program
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from kingdom.soldiers.trees import Tree, Trees
from tests.integration.soldiers.processes import MARK, marked
from tests.integration.soldiers.sources import a_tree, bare, make_source
from tests.patience import PATIENCE_SECONDS

SECRET_BEGINS, KEY_BEGINS = "house-secret-", "sk-house-"
SECRET, KEY = f"{SECRET_BEGINS}4711", f"{KEY_BEGINS}0815"
LIMITS = ResourceLimits(memory_bytes=400 << 20, processes=100, file_bytes=16 << 20)
_HERE = Path(__file__).parent
_PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class Tried:
    """What a hostile agent says of a trick, and what the house has found changed afterwards."""

    succeeded: bool
    evidence: str


class House:
    """Everything that an agent of one run could reach for; made by `opened`."""

    def __init__(self, folder: Path, profile: SandboxProfile) -> None:
        self.folder = folder
        self.profile = profile
        self.trees = Trees(folder / "repositories", pause=timedelta(milliseconds=10))
        self.source = make_source(folder / "app", files=3)
        self.tree = self._a_tree("tree1")
        self.other = self._a_tree("other")
        self.space, self.home, self.reports = (folder / name for name in ("space", "home", "reports"))
        self.secret_file = folder / "secret.txt"
        self.asked: list[str] = []
        self.told: dict[str, object] = {}
        self.gates: list[ModelProxy] = []
        self._mark = uuid4().hex

    @property
    def clone(self) -> Path:
        """Return the clone that both runs share."""
        return bare(self.folder, self.tree)

    async def furnish(self) -> None:
        """Put everything into its place."""
        for folder in (self.space, self.home, self.reports):
            folder.mkdir()
        self.secret_file.write_text(SECRET)
        (self.reports / "report.md").write_text("What was found.\n")
        await self.trees.prepare([self.tree, self.other])
        (self.other.path / "plans.txt").write_text(SECRET)

    async def attempt(self, trick: str) -> Tried:
        """Let a hostile agent try something, in its sandbox, and look at what has become of the house."""
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
            return Tried(succeeded=True, evidence=f"changed: {', '.join(changed)}")
        try:
            said = json.loads(finished.output.splitlines()[-1])
        except (ValueError, IndexError):
            return Tried(succeeded=False, evidence=f"it died, exit code {finished.code}")
        assert said["succeeded"] is not None, f"whether {trick} succeeds is unclear: {said['evidence']}"
        return Tried(succeeded=said["succeeded"], evidence=" ".join(said["evidence"].split())[:200])

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as the vendor: with whatever came, so that a key that leaks is seen."""
        self.asked.append(f"{request.method} {request.rel_url}")
        document = await request.json()
        got = {name: value for name, value in request.headers.items() if document.get("complain") or "key" not in name}
        told = {"headers": got, "query": dict(request.query)}
        return web.json_response(told, status=400 if document.get("complain") else 200)

    def _a_tree(self, name: str) -> Tree:
        return a_tree(self.folder, self.source, name)

    def _sandbox(self) -> Sandbox:
        return build_agent_sandbox(
            self.profile,
            space=self.space,
            home=self.home,
            checkouts=[place_of(self.tree.path, self.clone / "objects")],
            reports=self.reports,
            tools=[_HERE],
            model_proxy=self.gates[0],
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
            "house": self.folder,
            "secret_file": self.secret_file,
            "tree": self.tree.path,
            "other_tree": self.other.path,
            "clone": self.clone,
            "reports": self.reports,
            "space": self.space,
            "become": become.__file__,
            "gate": self.gates[0].socket,
            "gate_url": self._sandbox().url,
            "other_gate": self.gates[1].socket,
            "secret_begins": SECRET_BEGINS,
            "key_begins": KEY_BEGINS,
            **self.told,
        }
        return {name: str(value) for name, value in known.items()}

    def _picture(self) -> dict[str, str]:
        """Return whatever must not change because of an agent, and what must not be there after its end."""
        files = [
            *(
                self.clone / name
                for name in ("config", "hooks/post-checkout", "objects/info/alternates", "packed-refs")
            ),
            *(path for path in (self.clone / "refs").rglob("*") if path.is_file()),
            *(path for path in (self.clone / "objects").rglob("*") if path.is_file()),
            *(self.tree.path / ".git", self.other.path / "file0.txt", self.reports / "report.md", self.secret_file),
            *(self.folder / "planted", Path("/usr/bin/planted-by-agent"), Path(become.__file__)),
        ]
        picture = {
            str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path): _digest(path)
            for path in files
        }
        victim = Path(f"/proc/{self.told['victim_pid']}/stat")
        alive = victim.exists() and victim.read_text().rpartition(")")[2].split()[0] != "Z"
        return picture | {"the victim": str(alive), "processes left": str(marked(self._mark))}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return type(error).__name__


@asynccontextmanager
async def opened(folder: Path, profile: SandboxProfile) -> AsyncIterator[House]:
    """Make a house in which agents run under a profile."""
    house = House(folder, profile)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", house.answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_HERE / "victim.py"), str(folder)),
        env={"HOUSE_SECRET": SECRET},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        vendor = f"http://127.0.0.1:{runner.addresses[0][1]}"
        upstream = Upstream(vendor=Vendor.ANTHROPIC, url=vendor, key=KEY)
        house.gates = [
            ModelProxy(folder / name, [upstream], on_loopback=profile is not SandboxProfile.STRICT)
            for name in ("gate", "other-gate")
        ]
        for gate in house.gates:
            await gate.open()
        assert victim.stdout is not None
        house.told = json.loads(await asyncio.wait_for(victim.stdout.readline(), _PATIENCE.total_seconds()))
        await house.furnish()
        yield house
    finally:
        for gate in house.gates:
            await gate.close()
        await runner.cleanup()
        if victim.returncode is None:
            await victim.communicate(b"")
        await victim.wait()


async def released(house: House) -> str:
    """Release the checkout of the agent, and return what of the secret the clone has got; a failure is for people."""
    try:
        await house.trees.release(house.tree, "end")
    except ProgramFailed as error:
        return f"refused: {error}"
    return ""
