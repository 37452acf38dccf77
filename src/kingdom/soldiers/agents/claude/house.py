"""What an agent may say to the house, as an MCP server in this process that Claude Code calls through its output."""

from functools import partial
from typing import Any

from claude_agent_sdk import McpSdkServerConfig, SdkMcpTool, create_sdk_mcp_server

from kingdom.soldiers.agent_tools.port import SERVER_NAME, AgentTools, ToolDefinition

# The tool that ends a turn, by the name under which Claude Code has it.
ASKS = f"mcp__{SERVER_NAME}__ask_human"


def house_server(voice: AgentTools) -> McpSdkServerConfig:
    """Return the server with the tools of a voice."""
    return create_sdk_mcp_server(SERVER_NAME, tools=[_tool(voice, tool) for tool in voice.tools])


def _tool(voice: AgentTools, tool: ToolDefinition) -> SdkMcpTool[Any]:
    return SdkMcpTool(tool.name, tool.description, dict(tool.schema), partial(_call, voice, tool.name))


async def _call(voice: AgentTools, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reply = await voice.call(tool, arguments)
    return {"content": [{"type": "text", "text": reply.text}], "is_error": reply.is_error}
