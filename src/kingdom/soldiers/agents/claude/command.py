"""The command line, the environment and the MCP servers of Claude Code."""

import json
import os
from typing import Any

from kingdom.soldiers.agent_tools.port import SERVER_NAME
from kingdom.soldiers.agents.port import Launch
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

_FIXED_ARGUMENTS = (
    "--output-format=stream-json",
    "--verbose",
    "--input-format=stream-json",
    # The sandbox limits what the agent may do, and no person is present to approve anything.
    "--permission-mode=bypassPermissions",
    # Claude Code reads CLAUDE.md of the WorkSpace, but no settings that the agent left in its HOME.
    "--setting-sources=project",
    "--strict-mcp-config",
    # The worktree tools are off, because Kingdom creates the checkouts. The other tools could wake the agent after the
    # end of its turn.
    "--disallowedTools=EnterWorktree,ExitWorktree,ListAgents,Monitor,ScheduleWakeup,SendMessage,Workflow",
)
_ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    # The agent uses Kingdom's tool `remember` instead.
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # Claude Code writes prompts and answers to the session file before it continues.
    "CLAUDE_CODE_EAGER_FLUSH": "1",
}
_TYPES = {McpTransport.SSE: "sse", McpTransport.STREAMABLE_HTTP: "http"}


def build_arguments(launch: Launch, session: str, *, resumes: bool) -> list[str]:
    """Return the arguments without the MCP servers of the launch.

    These servers may contain secrets, and every local user can read the arguments of a process.
    """
    chosen = [f"--resume={session}" if resumes else f"--session-id={session}"]
    if launch.model:
        chosen.append(f"--model={launch.model}")
    if launch.instructions:
        chosen.append(f"--append-system-prompt={launch.instructions}")
    if launch.tools is not None:
        # There are few tools, so the agent loads them without searching.
        tool_server = {"type": "sdk", "name": SERVER_NAME, "alwaysLoad": True}
        chosen.append(f"--mcp-config={json.dumps({'mcpServers': {SERVER_NAME: tool_server}})}")
    return [*_FIXED_ARGUMENTS, *chosen]


def build_environment(launch: Launch) -> dict[str, str]:
    """Return the whole environment: the variables of the launch, and settings that turn off background traffic."""
    confined = launch.sandbox is not None and launch.sandbox.profile is not SandboxProfile.OFF
    # As root Claude Code refuses bypassPermissions unless it is told that it runs in a sandbox.
    as_root = {} if confined or os.geteuid() else {"IS_SANDBOX": "1"}
    # The proxy adds the real key; Claude Code only requires that some key is set.
    endpoint = {"ANTHROPIC_BASE_URL": launch.sandbox.url, "ANTHROPIC_API_KEY": "none"} if launch.sandbox else {}
    return {**_ENVIRONMENT, **as_root, **endpoint, **launch.environment}


def mcp_server_configs(launch: Launch) -> dict[str, Any]:
    """Return the MCP servers of the launch by name; the name of Kingdom's own server is reserved."""
    return {server.name: _server_config(server) for server in launch.mcp_servers if server.name != SERVER_NAME}


def _server_config(server: McpServer) -> dict[str, Any]:
    if server.transport is McpTransport.STDIO:
        command, *rest = server.command
        return {"type": "stdio", "command": command, "args": rest, "env": server.env}
    return {"type": _TYPES[server.transport], "url": server.url}
