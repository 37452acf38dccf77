"""The settings of soldiers in kingdom.yaml."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kingdom.soldiers.sandbox.egress_rules import parse_allowed_name
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.sandbox.vendors import Vendor

AgentName = Literal["scripted", "claude", "codex", "gemini", "opencode", "aider", "command"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of the model and the key to it, which agents never see.

    The defaults are the vendor's address, and the environment variable in which the vendor's programs look for the key.
    """

    # The vendor whose protocol the model uses; only needed if the agent is `command`.
    vendor: Vendor | None = None
    url: str = ""
    key: str = ""
    # Prices by model name, where the name has no date. They override the prices that Kingdom knows.
    prices: dict[str, Price] = {}


class SoldierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The soldier host of this machine; an empty name means the machine's name."""

    name: str = ""
    slots: Annotated[int, Meta(ge=1)] = 3
    directory: str = ""
    agent: AgentName = "scripted"
    # The program of the agent `command`. It gets a prompt by $prompt, $prompt_file or standard input, works, and ends.
    command: tuple[str, ...] = ()
    # Folders with programs. Agents can read these folders and search them before those of the system.
    path: tuple[str, ...] = ()
    # The directory into which `npm install --prefix` has installed codex, gemini or opencode.
    agents: str = ""
    model: ModelSettings = ModelSettings()
    # How agents are isolated: strict, dev (they get the network and the tools of this machine), or off (not isolated).
    sandbox: SandboxProfile = SandboxProfile.STRICT
    # Hosts that a strict sandbox can reach over https: a name, or "*.name" for all its subdomains.
    egress: tuple[str, ...] = ()
    # Whether agents may commit on the branch of their run; otherwise Kingdom commits for them.
    may_commit: bool = False
    # How many MiB of disk the files of one run may take together; 0 sets no limit.
    disk_mb: Annotated[int, Meta(ge=0)] = 20480
    # The folder with the ignored files that .worktreeinclude requests, in one subfolder per repository id.
    files: str = ""
    # Setup commands by repository id. A command runs once in each fresh checkout, instead of its .kingdom/setup.sh.
    setup: dict[str, str] = {}
    # After this long without a heartbeat a host counts as lost, and its runs continue on other hosts.
    lease_seconds: Annotated[float, Meta(ge=1)] = 30

    def __post_init__(self) -> None:
        # The function that reads kingdom.yaml adds the place in the file to a ValueError.
        for name in self.egress:
            try:
                parse_allowed_name(name)
            except ValueError as error:
                raise ValueError(f"egress: {error}") from None
        if self.egress and self.sandbox is not SandboxProfile.STRICT:
            raise ValueError(
                f"egress names hosts for the sandbox strict, but {self.sandbox} reaches every host:"
                " leave out egress, or set sandbox to strict"
            )
