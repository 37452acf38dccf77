"""The kinds of agents that a host can run, by the names that people choose them by."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured
from kingdom.soldiers.acp.client import AcpAgentClient
from kingdom.soldiers.acp.profile import AcpProfile
from kingdom.soldiers.acp.profiles import PROFILES
from kingdom.soldiers.agent import AgentClient
from kingdom.soldiers.claude.client import ClaudeAgentClient
from kingdom.soldiers.command.client import CommandAgentClient
from kingdom.soldiers.command.command import AIDER, PLACEHOLDERS, CommandTemplate
from kingdom.soldiers.outfit import Outfit
from kingdom.soldiers.quarters import Quarters
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.sandbox.egress import Egress
from kingdom.soldiers.sandbox.egress_rules import parse_allowed_name
from kingdom.soldiers.sandbox.probe import find_sandbox_problem
from kingdom.soldiers.sandbox.programs import how_to_install
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from kingdom.soldiers.scripted.client import ScriptedAgentClient
from kingdom.soldiers.settings import SoldierSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a kind of agent is run, and whose model it asks; one that follows a script asks nobody.

    `speaks` tells whether it can be offered tools: a program that only takes a prompt reports by its result file.
    """

    client: Callable[[SoldierSettings], AgentClient]
    vendor: Vendor | None = None
    speaks: bool = True
    # The module that an extra brings, and the name of the extra.
    library: tuple[str, str] | None = None


def _command(settings: SoldierSettings) -> AgentClient:
    if not settings.command:
        raise Misconfigured("soldiers.agent is `command`, but no program is named: set soldiers.command to its words")
    for word in settings.command:
        if not Template(word).is_valid() or not PLACEHOLDERS.issuperset(Template(word).get_identifiers()):
            known = ", ".join(f"${name}" for name in sorted(PLACEHOLDERS))
            raise Misconfigured(f"soldiers.command: the $ in {word!r} begins none of {known}; write $$ for a dollar")
    vendor = settings.model.vendor
    return CommandAgentClient(CommandTemplate(argv=settings.command, environment=_REACHED_BY[vendor] if vendor else {}))


def _acp(profile: AcpProfile, settings: SoldierSettings) -> AgentClient:
    directory = Path(settings.agents).absolute() if settings.agents else None
    return AcpAgentClient(profile, directory=directory, prices=settings.model.prices)


# What `off` means, behind its name.
NO_SANDBOX = "lets them read and change whatever this user can, and reach every network"
_CLAUDE, _ACP = ("claude_agent_sdk", "kingdom[claude]"), ("acp", "kingdom[acp]")
KINDS: Mapping[str, Kind] = {
    "scripted": Kind(client=lambda _: ScriptedAgentClient(), speaks=False),
    "claude": Kind(client=lambda _: ClaudeAgentClient(), vendor=Vendor.ANTHROPIC, library=_CLAUDE),
    **{
        name: Kind(client=partial(_acp, profile), vendor=profile.vendor, library=_ACP)
        for name, profile in PROFILES.items()
    },
    "aider": Kind(client=lambda _: CommandAgentClient(AIDER), vendor=Vendor.OPENAI, speaks=False),
    "command": Kind(client=_command, speaks=False),
}
# The vendor's own address, and the variable in which its programs look for the key.
_VENDORS = {
    Vendor.ANTHROPIC: ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    Vendor.OPENAI: ("https://api.openai.com", "OPENAI_API_KEY"),
    Vendor.GEMINI: ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
}
# What tells a program of any kind where the model is; the key is added on the way.
_REACHED_BY = {
    Vendor.ANTHROPIC: {"ANTHROPIC_BASE_URL": "$url", "ANTHROPIC_API_KEY": "none"},
    Vendor.OPENAI: {"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "none"},
    Vendor.GEMINI: {"GOOGLE_GEMINI_BASE_URL": "$url", "GEMINI_API_KEY": "none"},
}


def quarters_of(settings: SoldierSettings, environment: Callable[[str], str | None], secrets: set[str]) -> Quarters:
    """Return how the agents of a host live; `secrets` are removed from all that they write.

    `environment` finds the key of a vendor where the settings name none. What is in a checkout, a stranger may have
    written, and whatever agent works there, it is run: so no agent is exempt from the sandbox.
    """
    kind = KINDS[settings.agent]
    _refuse_what_is_missing(settings, kind)
    upstreams = _upstreams(settings, _vendor(settings, kind), environment)
    return Quarters(
        profile=settings.sandbox,
        path=_path(settings),
        upstreams=upstreams,
        egress=Egress([parse_allowed_name(name) for name in settings.egress]) if settings.egress else None,
        speaks=kind.speaks,
        may_commit=settings.may_commit,
        disk_mib=settings.disk_mb,
        outfit=Outfit(files=Path(settings.files) if settings.files else None, setup=settings.setup),
        redaction=Redaction({*secrets, *(upstream.key for upstream in upstreams)}),
    )


def _refuse_what_is_missing(settings: SoldierSettings, kind: Kind) -> None:
    """Tell at once what the first agent would fail for."""
    if kind.library and find_spec(kind.library[0]) is None:
        raise Misconfigured(f"{settings.agent} needs a library that is not installed: pip install '{kind.library[1]}'")
    if settings.sandbox is not SandboxProfile.OFF and (reason := find_sandbox_problem(settings.sandbox)):
        remedy = "`kingdom doctor` tells how to allow it" if shutil.which("bwrap") else how_to_install("bubblewrap")
        raise Misconfigured(
            f"agents, setup scripts and checks run in a sandbox, which cannot be made here: {reason}. What to do:"
            f' {remedy}. Or write `sandbox: "{SandboxProfile.OFF}"` under `soldiers` into kingdom.yaml: it {NO_SANDBOX}'
        )


def _path(settings: SoldierSettings) -> tuple[Path, ...]:
    path = tuple(Path(folder).absolute() for folder in settings.path)
    for folder in path:
        if not folder.is_dir():
            raise Misconfigured(f"soldiers.path names {folder}, which is no folder: name those that programs are in")
    return path


def _vendor(settings: SoldierSettings, kind: Kind) -> Vendor | None:
    """Return whose protocol the model speaks: most agents speak one, of a program only its owner knows."""
    model = settings.model
    if kind.vendor and model.vendor not in {None, kind.vendor}:
        raise Misconfigured(
            f"{settings.agent} asks models of {kind.vendor}, but soldiers.model.vendor is {model.vendor}: leave it out"
        )
    if settings.agent != "command":
        return kind.vendor
    if model.vendor is None and (model.url or model.key):
        raise Misconfigured(
            "soldiers.model does not say whose protocol the model speaks: set soldiers.model.vendor to"
            f" {', '.join(Vendor)}"
        )
    return model.vendor


def _upstreams(
    settings: SoldierSettings, vendor: Vendor | None, environment: Callable[[str], str | None]
) -> tuple[Upstream, ...]:
    if vendor is None:
        return ()
    address, variable = _VENDORS[vendor]
    key = settings.model.key or environment(variable)
    if not key:
        raise Misconfigured(
            f"there is no key for the model of {settings.agent}: set {variable}, or name a place for it as"
            " soldiers.model.key in kingdom.yaml, such as file:PATH"
        )
    url, prices = settings.model.url or address, settings.model.prices
    return (Upstream(vendor=vendor, url=url, key=key, prices=prices),)
