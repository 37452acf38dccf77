"""How Claude Code is started: its arguments, its environment, and the MCP servers that it may call."""

import json
import os
from typing import Any

from kingdom.soldiers.agent import Launch
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.soldiers.voice.voice import SERVER
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

_ALWAYS = (
    "--output-format=stream-json",
    "--verbose",
    "--input-format=stream-json",
    # What it may do is the sandbox's business; nobody is there to be asked.
    "--permission-mode=bypassPermissions",
    # CLAUDE.md of the WorkSpace counts; what the agent itself has left in its HOME does not.
    "--setting-sources=project",
    "--strict-mcp-config",
    # A turn is over with its result, nothing may wake the agent later; and checkouts are ours to make.
    "--disallowedTools=EnterWorktree,ExitWorktree,ListAgents,Monitor,ScheduleWakeup,SendMessage,Workflow",
)
_ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    # What it learns it tells by its voice.
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # What it has taken in, and what it has answered, is in its own transcript before it goes on.
    "CLAUDE_CODE_EAGER_FLUSH": "1",
}
_TYPES = {McpTransport.SSE: "sse", McpTransport.STREAMABLE_HTTP: "http"}


def arguments(launch: Launch, session: str, *, resumes: bool) -> list[str]:
    """Return the arguments; everybody on the machine can read them, so servers that may have secrets come later."""
    chosen = [f"--resume={session}" if resumes else f"--session-id={session}"]
    if launch.model:
        chosen.append(f"--model={launch.model}")
    if launch.instructions:
        chosen.append(f"--append-system-prompt={launch.instructions}")
    if launch.voice is not None:
        # Its tools are few, and the agent shall not have to search for them.
        house = {"type": "sdk", "name": SERVER, "alwaysLoad": True}
        chosen.append(f"--mcp-config={json.dumps({'mcpServers': {SERVER: house}})}")
    return [*_ALWAYS, *chosen]


def environment(launch: Launch) -> dict[str, str]:
    """Return the whole environment: that of the launch, and what keeps Claude Code to its work."""
    confined = launch.sandbox is not None and launch.sandbox.profile is not Profile.OFF
    # As root it refuses to work without asking anybody, unless it is told that a sandbox is around it.
    as_root = {} if confined or os.geteuid() else {"IS_SANDBOX": "1"}
    # The key is added on the way; Claude Code only wants to have one.
    reached = {"ANTHROPIC_BASE_URL": launch.sandbox.url, "ANTHROPIC_API_KEY": "none"} if launch.sandbox else {}
    return {**_ENVIRONMENT, **as_root, **reached, **launch.environment}


def mcp_servers(launch: Launch) -> dict[str, Any]:
    """Return how the MCP servers of the launch are reached; the name of the house's own is not to be had."""
    return {server.name: _reached(server) for server in launch.mcp_servers if server.name != SERVER}


def _reached(server: McpServer) -> dict[str, Any]:
    if server.transport is McpTransport.STDIO:
        command, *rest = server.command
        return {"type": "stdio", "command": command, "args": rest, "env": server.env}
    return {"type": _TYPES[server.transport], "url": server.url}
