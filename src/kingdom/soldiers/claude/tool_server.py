"""The tools that Kingdom offers to Claude Code, as an MCP server in this process that the SDK connects."""

from functools import partial
from typing import Any

from claude_agent_sdk import McpSdkServerConfig, SdkMcpTool, create_sdk_mcp_server

from kingdom.soldiers.voice.voice import SERVER, Tool, Voice

# The name of the tool that ends a turn, as Claude Code knows it.
ASK_HUMAN = f"mcp__{SERVER}__ask_human"


def create_tool_server(voice: Voice) -> McpSdkServerConfig:
    """Return an MCP server with these tools."""
    return create_sdk_mcp_server(SERVER, tools=[_tool(voice, tool) for tool in voice.tools])


def _tool(voice: Voice, tool: Tool) -> SdkMcpTool[Any]:
    return SdkMcpTool(tool.name, tool.description, dict(tool.schema), partial(_call, voice, tool.name))


async def _call(voice: Voice, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reply = await voice.call(tool, arguments)
    return {"content": [{"type": "text", "text": reply.text}], "is_error": reply.is_error}
