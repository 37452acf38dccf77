"""The clients under the contract, and the unavoidable differences of their agents."""

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.util import find_spec
from pathlib import Path

import pytest

from kingdom.soldiers.agents.claude.client import ClaudeAgentClient
from kingdom.soldiers.agents.port import AgentClient
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Sandbox, SandboxProfile
from tests.contract.agents import acp_clients
from tests.fakes.instant_agent import InstantAgents

# The folders of Python and of these tests, which the MCP server of an agent needs.
_SHOWN = tuple(Path(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[2]))
_ERRORS = {status: f"the script asks for error {status}" for status in (400, 401, 429, 500, 529)}


class CostTiming(Enum):
    """When an agent reports the cost of a model response."""

    AT_ONCE = auto()
    AFTER_ITS_TOOLS = auto()
    AFTER_THE_TURN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A client under the contract.

    `environment` has the variables that lead an agent to its model, and `impatient` those that make it give up on the
    model soon. `write_tool` is the name of the tool that writes files, and `mcp_tool` the format of the name of an MCP
    tool. `written` is the first word of the update about writing a.txt. `crash` is the reported end of an agent whose
    script says "crash with code 3"; some agents cannot choose the code. `limit` is the message of its vendor at a usage
    limit. `errors` maps each model error that the agent gives up on soon to the message of the agent. Updates come
    `in_order`, unless a petition may overtake an earlier message. `can_stop_reacting` means
    that the agent can hang, so that only killing it ends its turn.
    """

    make: Callable[[], AgentClient]
    model: str = "free"
    environment: Mapping[str, str] = field(default_factory=dict)
    impatient: Mapping[str, str] = field(default_factory=dict)
    has_model: bool = False
    sandboxed: bool = False
    write_tool: str = "write"
    mcp_tool: str = ""
    written: str = "a.txt"
    crash: str = "exit code 3"
    limit: str = ""
    errors: Mapping[int, str] = field(default_factory=lambda: _ERRORS)
    cost_timing: CostTiming = CostTiming.AT_ONCE
    in_order: bool = True
    can_stop_reacting: bool = True
    checks_mcp_servers: bool = True

    def sandbox(self, *writable: Path, socket: Path | None) -> Sandbox | None:
        if not self.sandboxed:
            return None
        return Sandbox(
            profile=SandboxProfile.STRICT, writable=writable, readable=_SHOWN, model_socket=socket, limits=AGENT_LIMITS
        )


CLAUDE = Kind(
    make=ClaudeAgentClient,
    model="claude-opus-5-5",
    environment={
        "ANTHROPIC_BASE_URL": "{model}",
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        # Claude Code would blame these features for the first error 400, and retry without them.
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    },
    impatient={"API_TIMEOUT_MS": "1500"},
    has_model=True,
    sandboxed=True,
    write_tool="Write",
    mcp_tool="mcp__{server}__{tool}",
    crash="SIGKILL",
    limit="You have reached your specified API usage limits. You will regain access on {date} at 00:00 UTC.",
)
CODEX = Kind(
    make=acp_clients.codex,
    model=acp_clients.MODEL,
    environment=acp_clients.ENVIRONMENT,
    has_model=True,
    write_tool="exec_command",
    mcp_tool="mcp__{server}/{tool}",
    written="mkdir",
    crash="SIGKILL",
    limit=acp_clients.LIMIT,
    errors={
        400: "the script asks for error 400",
        401: "Authentication required",
        429: "429 Too Many Requests",
        500: "high demand",
        529: "529",
    },
    cost_timing=CostTiming.AFTER_ITS_TOOLS,
    # Its adapter reacts even if the agent does not.
    can_stop_reacting=False,
    checks_mcp_servers=False,
)
OPENCODE = Kind(
    make=acp_clients.opencode,
    model=acp_clients.MODEL,
    environment=acp_clients.ENVIRONMENT,
    has_model=True,
    mcp_tool="{server}_{tool}",
    crash="SIGKILL",
    limit=acp_clients.LIMIT,
    # It retries the other errors for more than a minute.
    errors={status: _ERRORS[status] for status in (400, 401)},
    cost_timing=CostTiming.AFTER_THE_TURN,
    in_order=False,
    checks_mcp_servers=False,
)
KINDS = {
    "scripted": Kind(make=ScriptedAgentClient, sandboxed=True),
    "scripted, not contained": Kind(make=lambda: ScriptedAgentClient(contained=False)),
    "instant": Kind(make=InstantAgents),
    "claude": CLAUDE,
    "codex": CODEX,
    "opencode": OPENCODE,
}
MARKS = {
    "claude": [
        pytest.mark.agents,
        pytest.mark.skipif(find_spec("claude_agent_sdk") is None, reason="claude-agent-sdk is not installed"),
        pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    ],
    "codex": acp_clients.marks("codex"),
    "opencode": acp_clients.marks("opencode"),
}
EVERY_KIND = [pytest.param(name, id=name, marks=MARKS.get(name, ())) for name in KINDS]
