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
    # By model name without a date; these take precedence over the prices that Kingdom knows.
    prices: dict[str, Price] = {}


class SoldierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The soldier host of this machine; an empty name means the machine's name."""

    name: str = ""
    slots: Annotated[int, Meta(ge=1)] = 3
    directory: str = ""
    agent: AgentName = "scripted"
    # The program that takes a prompt on its standard input and ends, if the agent is `command`.
    command: tuple[str, ...] = ()
    # Folders with programs that agents find before those of the system, and may read.
    path: tuple[str, ...] = ()
    # Where npm has installed codex, gemini or opencode by `npm install --prefix`.
    agents: str = ""
    model: ModelSettings = ModelSettings()
    # What agents may see: strict, dev (with the network and the tools of this machine), or off (everything).
    sandbox: SandboxProfile = SandboxProfile.STRICT
    # Hosts that a strict sandbox reaches over https: a name, or "*.name" for all below it.
    egress: tuple[str, ...] = ()
    # Whether agents may commit on the branch of their run; otherwise Kingdom commits for them.
    may_commit: bool = False
    # How many MiB of disk the files of one run may take together; 0 sets no limit.
    disk_mb: Annotated[int, Meta(ge=0)] = 20480
    # Where the ignored files are that .worktreeinclude requests, in one folder per Git.
    files: str = ""
    # A command per Git that runs once in each fresh checkout, in place of its .kingdom/setup.sh.
    setup: dict[str, str] = {}
    # A host without a sign of life for this long is lost, and its runs continue elsewhere.
    lease_seconds: Annotated[float, Meta(ge=1)] = 30

    def __post_init__(self) -> None:
        # The reader of kingdom.yaml adds the place in the file to a ValueError.
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
