"""The environment of agents: sandbox, model proxy, tools, and the setup of their checkouts."""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from kingdom.bus.port import Bus
from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agent_tools.port import AgentTools
from kingdom.soldiers.agent_tools.relay import answer_tool_call
from kingdom.soldiers.agent_tools.results import find_results_of_repositories
from kingdom.soldiers.agent_tools.verdict import await_verdict
from kingdom.soldiers.checkouts.checkout import GitPolicy, checkout_paths
from kingdom.soldiers.checkouts.git import IDENTITY
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.files.disk_quota import DiskQuota
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.egress import Egress, egress_environment
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.programs import folders_of_tools, toolchain_environment, toolchain_programs, user_home
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup, copied_secrets, set_up_checkout
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.soldiers.workplace.run_ports import PORT_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnvironment:
    """What a host provides to its agents of any kind; setup scripts and checks run in the same sandbox `profile`.

    `path` are folders with programs, searched before those of the system. `upstreams` are the models that the proxy
    serves. `egress` are the hosts that a strict sandbox can reach in addition to the model. `may_commit` is whether
    agents may commit on the branch of their run. `disk_mib` is the disk quota of a run in MiB, 0 for no quota. If the
    file `guide` exists, its text replaces the built-in instructions in the CLAUDE.md of a WorkSpace.
    """

    profile: SandboxProfile
    path: tuple[Path, ...] = ()
    upstreams: tuple[Upstream, ...] = ()
    egress: Egress | None = None
    offers_tools: bool = False
    may_commit: bool = False
    disk_mib: int = 0
    checkout_setup: CheckoutSetup = field(default_factory=CheckoutSetup)
    redaction: Redaction = DEFAULT_REDACTION
    guide: Path | None = None

    @property
    def git_policy(self) -> GitPolicy:
        """Return how git runs on the checkouts of these agents."""
        return GitPolicy.for_profile(self.profile, may_commit=self.may_commit)

    def tool_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return PATH and, if the profile allows it, the variables of the toolchains that the user has installed."""
        toolchains = {}
        folders = [*self.path]
        if self.profile in {SandboxProfile.DEV, SandboxProfile.OFF}:
            toolchains = toolchain_environment(user_home())
            folders += toolchain_programs(user_home())
        path = [*map(str, folders), environment.get("PATH", os.defpath)]
        return {**toolchains, "PATH": os.pathsep.join(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """The workplace of one Work's agent: its WorkSpace and HOME, its checkouts, and its environment.

    An agent that goes on in the session of an earlier run uses the WorkSpace and the HOME of that session. Otherwise
    `home_run` is the run itself. `base_variables` are the environment variables that every program gets.
    """

    agent_environment: AgentEnvironment
    folders: HostFolders
    run_checkouts: RunCheckouts
    workflow_id: str
    home_run: str
    space: Path
    checkouts: tuple[CheckoutSpec, ...]
    base_variables: Mapping[str, str]

    @property
    def redaction(self) -> Redaction:
        """Return the Redaction of the environment, extended by the secrets in files that the checkouts get."""
        checkout_setup, folder = self.agent_environment.checkout_setup, self._setup_folder
        given = [copied_secrets(tree, checkout_setup, folder=folder) for tree in self.checkouts]
        return self.agent_environment.redaction.with_secrets({secret for secrets in given for secret in secrets})

    def program_environment(self) -> dict[str, str]:
        """Return the environment variables of agents and checks: HOME, temporary folder, ports, tools and proxy."""
        self.home.mkdir(parents=True, exist_ok=True)
        temporary = AgentFile(self.home, "tmp")
        temporary.make_folder()
        ports = {PORT_VARIABLE: str(self.folders.ports.base(self.workflow_id))}
        places = {
            **self.agent_environment.tool_environment(self.base_variables),
            "HOME": str(self.home),
            "TMPDIR": str(temporary.path),
        }
        proxy = egress_environment() if self._egress else {}
        return {**self.base_variables, **IDENTITY, **ports, **places, **proxy}

    def sandbox(self, model_proxy: ModelProxy | None = None, egress_socket: Path | None = None) -> Sandbox:
        """Return the sandbox of agents and checks; `egress_socket` belongs to the proxy to allowed hosts."""
        sandbox = build_agent_sandbox(
            self.agent_environment.profile,
            space=self.space,
            home=self.home,
            checkouts=[
                checkout_paths(tree.path, self.run_checkouts.clone_path(tree) / "objects") for tree in self.checkouts
            ],
            reports=self.folders.run(self.workflow_id) / "reports",
            tools=[place for folder in self.agent_environment.path for place in folders_of_tools(folder)],
            model_proxy=model_proxy,
            egress_socket=egress_socket,
            may_commit=self.agent_environment.may_commit,
        )
        return replace(sandbox, disk=self.disk)

    @property
    def home(self) -> Path:
        """Return the HOME of the agent."""
        return self.folders.home(self.home_run)

    @property
    def disk(self) -> DiskQuota | None:
        """Return the disk quota of the run, if there is one."""
        mib = self.agent_environment.disk_mib
        return DiskQuota(self._folders_of_run, mib) if mib else None

    async def set_up_checkouts(self) -> None:
        """Set up the checkouts that are not set up yet."""
        async with AsyncExitStack() as stack:
            sandbox = self.sandbox(egress_socket=await self.open_egress(stack))
            for tree in self.checkouts:
                await set_up_checkout(
                    tree,
                    self.agent_environment.checkout_setup,
                    folder=self._setup_folder,
                    environment=self.program_environment(),
                    ignored=partial(self.run_checkouts.ignored, tree),
                    sandbox=sandbox,
                    redaction=self.redaction,
                )

    def create_tools(self, bus: Bus) -> AgentTools | None:
        """Create the tools of an agent, if its kind can be offered tools."""
        if not self.agent_environment.offers_tools:
            return None
        git_ids = tuple(tree.git_id for tree in self.checkouts)
        return HostTools(
            self.space,
            partial(await_verdict, bus),
            find_results=partial(find_results_of_repositories, bus, git_ids),
            redaction=self.redaction,
        )

    @property
    def _setup_folder(self) -> Path:
        return self.folders.run(self.workflow_id) / "outfit"

    def create_meter(self) -> Meter | None:
        """Create a meter for the cost of an agent, if its model is reached through the proxy."""
        return Meter() if self.agent_environment.upstreams else None

    async def open_model_proxy(
        self, soldier_id: str, tools: AgentTools | None, stack: AsyncExitStack, meter: Meter | None = None
    ) -> ModelProxy | None:
        """Open the proxy to the model and the tools if the agent has a model or tools; `stack` closes the proxy."""
        if not self.agent_environment.upstreams and tools is None:
            return None
        model_proxy = ModelProxy(
            self._socket_folder / soldier_id,
            self.agent_environment.upstreams,
            on_tool_call=partial(answer_tool_call, tools) if tools else None,
            on_loopback=self.agent_environment.profile is not SandboxProfile.STRICT,
            meter=meter,
        )
        return await stack.enter_async_context(model_proxy)

    async def open_egress(self, stack: AsyncExitStack) -> Path | None:
        """Open the proxy to the allowed hosts, if there are any, and return its socket; `stack` closes the proxy."""
        if self._egress is None:
            return None
        log = self.folders.egress_log(self.workflow_id)
        proxy = await stack.enter_async_context(self._egress.proxy(self._socket_folder, log, self.redaction))
        return proxy.socket

    def _folders_of_run(self) -> list[Path]:
        earlier = [self.home, self.space] if self.home_run != self.workflow_id else []
        return [*self.folders.folders_of_run(self.workflow_id), *earlier]

    @property
    def _egress(self) -> Egress | None:
        return self.agent_environment.egress if self.agent_environment.profile is SandboxProfile.STRICT else None

    @property
    def _socket_folder(self) -> Path:
        return self.folders.run(self.workflow_id) / "gates"
