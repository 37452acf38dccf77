"""The kinds of agents that a host can run, by their names in the settings."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.acp.client import AcpAgentClient
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.acp.profiles import PROFILES
from kingdom.soldiers.agents.claude.client import ClaudeAgentClient
from kingdom.soldiers.agents.command.client import CommandAgentClient
from kingdom.soldiers.agents.command.command import AIDER, PLACEHOLDERS, CommandTemplate
from kingdom.soldiers.agents.port import AgentClient
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.sandbox.egress import Egress
from kingdom.soldiers.sandbox.egress_rules import parse_allowed_name
from kingdom.soldiers.sandbox.probe import find_sandbox_problem
from kingdom.soldiers.sandbox.programs import how_to_install
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKind:
    """How a kind of agent is started, and the vendor of its model, if the kind determines it.

    `offers_tools` is False for a program that only takes a prompt and reports through its result file. `library` is a
    module that the kind needs, and the extra of Kingdom that installs this module.
    """

    client: Callable[[SoldierSettings], AgentClient]
    vendor: Vendor | None = None
    offers_tools: bool = True
    library: tuple[str, str] | None = None


def _command_client(settings: SoldierSettings) -> AgentClient:
    if not settings.command:
        raise Misconfigured(
            "soldiers.agent is `command`, but soldiers.command is empty: set it to the program and its arguments"
        )
    for word in settings.command:
        if not Template(word).is_valid() or not PLACEHOLDERS.issuperset(Template(word).get_identifiers()):
            known = ", ".join(f"${name}" for name in sorted(PLACEHOLDERS))
            raise Misconfigured(
                f"soldiers.command: the $ in {word!r} starts none of {known}; write $$ for a dollar sign"
            )
    vendor = settings.model.vendor
    return CommandAgentClient(
        CommandTemplate(argv=settings.command, environment=_MODEL_VARIABLES[vendor] if vendor else {})
    )


def _acp_client(profile: AcpProfile, settings: SoldierSettings) -> AgentClient:
    directory = Path(settings.agents).absolute() if settings.agents else None
    return AcpAgentClient(profile, directory=directory, prices=settings.model.prices)


# The consequence of the profile `off`, as part of a sentence.
NO_SANDBOX_CONSEQUENCE = "lets them read and change whatever this user can, and reach every network"
_CLAUDE, _ACP = ("claude_agent_sdk", "kingdom[claude]"), ("acp", "kingdom[acp]")
AGENT_KINDS: Mapping[str, AgentKind] = {
    "scripted": AgentKind(client=lambda _: ScriptedAgentClient(), offers_tools=False),
    "claude": AgentKind(client=lambda _: ClaudeAgentClient(), vendor=Vendor.ANTHROPIC, library=_CLAUDE),
    **{
        name: AgentKind(client=partial(_acp_client, profile), vendor=profile.vendor, library=_ACP)
        for name, profile in PROFILES.items()
    },
    "aider": AgentKind(client=lambda _: CommandAgentClient(AIDER), vendor=Vendor.OPENAI, offers_tools=False),
    "command": AgentKind(client=_command_client, offers_tools=False),
}
# The vendor's address, and the environment variable in which its programs look for the key.
_VENDORS = {
    Vendor.ANTHROPIC: ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    Vendor.OPENAI: ("https://api.openai.com", "OPENAI_API_KEY"),
    Vendor.GEMINI: ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
}
# The variables that tell a program the address of the model. The key is a dummy, because the proxy adds the real key.
_MODEL_VARIABLES = {
    Vendor.ANTHROPIC: {"ANTHROPIC_BASE_URL": "$url", "ANTHROPIC_API_KEY": "none"},
    Vendor.OPENAI: {"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "none"},
    Vendor.GEMINI: {"GOOGLE_GEMINI_BASE_URL": "$url", "GEMINI_API_KEY": "none"},
}


def build_agent_environment(
    settings: SoldierSettings, environment: Callable[[str], str | None], secrets: set[str]
) -> AgentEnvironment:
    """Return the environment of a host's agents; `secrets` are removed from all their output.

    `environment` returns the value of an environment variable, for a model key that the settings do not contain. No
    kind of agent is exempt from the sandbox, because every agent runs files of a checkout and these may be hostile.
    """
    kind = AGENT_KINDS[settings.agent]
    _check_requirements(settings, kind)
    upstreams = _upstreams(settings, _vendor(settings, kind), environment)
    return AgentEnvironment(
        profile=settings.sandbox,
        path=_program_folders(settings),
        upstreams=upstreams,
        egress=Egress([parse_allowed_name(name) for name in settings.egress]) if settings.egress else None,
        offers_tools=kind.offers_tools,
        may_commit=settings.may_commit,
        disk_mib=settings.disk_mb,
        checkout_setup=CheckoutSetup(files=Path(settings.files) if settings.files else None, setup=settings.setup),
        redaction=Redaction({*secrets, *(upstream.key for upstream in upstreams)}),
    )


def _check_requirements(settings: SoldierSettings, kind: AgentKind) -> None:
    """Raise Misconfigured now if the library or the sandbox is missing, not when the first agent starts."""
    if kind.library and find_spec(kind.library[0]) is None:
        raise Misconfigured(f"{settings.agent} needs a library that is not installed: pip install '{kind.library[1]}'")
    if settings.sandbox is not SandboxProfile.OFF and (reason := find_sandbox_problem(settings.sandbox)):
        remedy = (
            "run `kingdom doctor`, which says how to allow it"
            if shutil.which("bwrap")
            else how_to_install("bubblewrap")
        )
        raise Misconfigured(
            f"agents, setup scripts and checks run in a sandbox, which cannot be created here: {reason}. What to do:"
            f' {remedy}. Or write `sandbox: "{SandboxProfile.OFF}"` under `soldiers` into kingdom.yaml: it'
            f" {NO_SANDBOX_CONSEQUENCE}"
        )


def _program_folders(settings: SoldierSettings) -> tuple[Path, ...]:
    path = tuple(Path(folder).absolute() for folder in settings.path)
    for folder in path:
        if not folder.is_dir():
            raise Misconfigured(
                f"soldiers.path names {folder}, which is not a folder: name folders that contain programs"
            )
    return path


def _vendor(settings: SoldierSettings, kind: AgentKind) -> Vendor | None:
    """Return the vendor whose protocol the model uses; for the agent `command` only the settings can name it."""
    model = settings.model
    if kind.vendor and model.vendor not in {None, kind.vendor}:
        raise Misconfigured(
            f"{settings.agent} uses models of {kind.vendor}, but soldiers.model.vendor is {model.vendor}: remove it"
        )
    if settings.agent != "command":
        return kind.vendor
    if model.vendor is None and (model.url or model.key):
        raise Misconfigured(
            "soldiers.model does not name the protocol of the model: set soldiers.model.vendor to one of"
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
            f"there is no key for the model of {settings.agent}: set {variable}, or name its location as"
            " soldiers.model.key in kingdom.yaml, such as file:PATH"
        )
    url, prices = settings.model.url or address, settings.model.prices
    return (Upstream(vendor=vendor, url=url, key=key, prices=prices),)
