"""How the agents of a host live: what each may see and reach, what it may say, and what it finds in its checkouts."""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from kingdom.bus.port import Bus
from kingdom.soldiers.agent_files import AgentFile
from kingdom.soldiers.checkout import GitUse, place_of
from kingdom.soldiers.disk_quota import DiskQuota
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.git import IDENTITY
from kingdom.soldiers.outfit import PORT_VARIABLE, Outfit, copied_secrets, fit_out, port_base
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.egress import Egress, egress_environment
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.programs import folders_of_tools, toolchain_environment, toolchain_programs, user_home
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream
from kingdom.soldiers.trees import Tree, Trees
from kingdom.soldiers.voice.house import HouseVoice
from kingdom.soldiers.voice.relay import answer
from kingdom.soldiers.voice.verdict import await_verdict
from kingdom.soldiers.voice.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """What a host gives to its agents, whatever their kind; setup scripts and checks run under the same `profile`.

    `path` are folders of programs, which they find before those of the system; `egress` are the hosts that a strict
    sandbox reaches beside the model; `disk_mib` is what a run may take of the disk, 0 for all of it.
    """

    profile: SandboxProfile
    path: tuple[Path, ...] = ()
    upstreams: tuple[Upstream, ...] = ()
    egress: Egress | None = None
    speaks: bool = False
    may_commit: bool = False
    disk_mib: int = 0
    outfit: Outfit = field(default_factory=Outfit)
    redaction: Redaction = WELL_KNOWN

    @property
    def git_use(self) -> GitUse:
        """Return how git is run on the checkouts of these agents."""
        return GitUse.under(self.profile, may_commit=self.may_commit)

    def tools(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return where programs are found, those too that a person has installed, if the profile shows them."""
        shown = {}
        folders = [*self.path]
        if self.profile in {SandboxProfile.DEV, SandboxProfile.OFF}:
            shown = toolchain_environment(user_home())
            folders += toolchain_programs(user_home())
        path = [*map(str, folders), environment.get("PATH", os.defpath)]
        return {**shown, "PATH": os.pathsep.join(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lodging:
    """Where the agent of one Work lives: its WorkSpace and HOME, the checkouts it works on, and its environment."""

    quarters: Quarters
    folders: Folders
    trees: Trees
    workflow_id: str
    space: Path
    checkouts: tuple[Tree, ...]
    environment: Mapping[str, str]

    @property
    def redaction(self) -> Redaction:
        """Return what removes the secrets of the house, and those in files that the checkouts were given."""
        outfit, folder = self.quarters.outfit, self._outfit_folder
        given = [copied_secrets(tree, outfit, folder=folder) for tree in self.checkouts]
        return self.quarters.redaction.knowing({secret for secrets in given for secret in secrets})

    def environment_inside(self) -> dict[str, str]:
        """Return the environment of agents and checks, with a HOME, a place for temporary files, ports and tools."""
        home = self.folders.home(self.workflow_id)
        home.mkdir(parents=True, exist_ok=True)
        temporary = AgentFile(home, "tmp")
        temporary.make_folder()
        ports = {PORT_VARIABLE: str(port_base(self.folders, self.workflow_id))}
        places = {**self.quarters.tools(self.environment), "HOME": str(home), "TMPDIR": str(temporary.path)}
        proxy = egress_environment() if self._egress else {}
        return {**self.environment, **IDENTITY, **ports, **places, **proxy}

    def sandbox(self, gate: ModelProxy | None = None, egress: Path | None = None) -> Sandbox:
        """Return what agents and checks may see; `gate` leads to the model, `egress` to hosts by name."""
        sandbox = build_agent_sandbox(
            self.quarters.profile,
            space=self.space,
            home=self.folders.home(self.workflow_id),
            checkouts=[place_of(tree.path, self.trees.clone_of(tree) / "objects") for tree in self.checkouts],
            reports=self.folders.run(self.workflow_id) / "reports",
            tools=[place for folder in self.quarters.path for place in folders_of_tools(folder)],
            model_proxy=gate,
            egress=egress,
            may_commit=self.quarters.may_commit,
        )
        return replace(sandbox, disk=self.disk)

    @property
    def disk(self) -> DiskQuota | None:
        """Return what the run may take of the disk, if that is limited."""
        mib = self.quarters.disk_mib
        return DiskQuota(partial(self.folders.all_of, self.workflow_id), mib) if mib else None

    async def fit_out(self) -> None:
        """Give fresh checkouts what git does not have of them."""
        async with AsyncExitStack() as stack:
            sandbox = self.sandbox(egress=await self.open_egress(stack))
            for tree in self.checkouts:
                await fit_out(
                    tree,
                    self.quarters.outfit,
                    folder=self._outfit_folder,
                    environment=self.environment_inside(),
                    ignored=partial(self.trees.ignored, tree),
                    sandbox=sandbox,
                    redaction=self.redaction,
                )

    def voice(self, bus: Bus) -> Voice | None:
        """Return what an agent that can be offered tools speaks to the house by."""
        if not self.quarters.speaks:
            return None
        return HouseVoice(self.space, partial(await_verdict, bus), redaction=self.redaction)

    @property
    def _outfit_folder(self) -> Path:
        return self.folders.run(self.workflow_id) / "outfit"

    def meter(self) -> Meter | None:
        """Return what counts the cost of an agent, if it asks its model through the house."""
        return Meter() if self.quarters.upstreams else None

    async def open_gate(
        self, soldier_id: str, voice: Voice | None, stack: AsyncExitStack, meter: Meter | None = None
    ) -> ModelProxy | None:
        """Open the way out of an agent that has something to reach, until the stack is closed."""
        if not self.quarters.upstreams and voice is None:
            return None
        gate = ModelProxy(
            self._gates / soldier_id,
            self.quarters.upstreams,
            on_tool_call=partial(answer, voice) if voice else None,
            on_loopback=self.quarters.profile is not SandboxProfile.STRICT,
            meter=meter,
        )
        return await stack.enter_async_context(gate)

    async def open_egress(self, stack: AsyncExitStack) -> Path | None:
        """Open the way of a program to hosts by name, if there is one, until the stack is closed."""
        if self._egress is None:
            return None
        log = self.folders.egress_log(self.workflow_id)
        proxy = await stack.enter_async_context(self._egress.proxy(self._gates, log, self.redaction))
        return proxy.socket

    @property
    def _egress(self) -> Egress | None:
        return self.quarters.egress if self.quarters.profile is SandboxProfile.STRICT else None

    @property
    def _gates(self) -> Path:
        return self.folders.run(self.workflow_id) / "gates"
