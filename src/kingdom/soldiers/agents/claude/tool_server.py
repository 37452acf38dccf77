"""The tools that Kingdom offers to Claude Code, as an MCP server that the SDK runs in this process."""

from functools import partial
from typing import Any

from claude_agent_sdk import McpSdkServerConfig, SdkMcpTool, create_sdk_mcp_server

from kingdom.soldiers.agent_tools.port import SERVER_NAME, AgentTools, ToolDefinition

# The name of the tool that ends a turn, as Claude Code knows it.
ASK_HUMAN = f"mcp__{SERVER_NAME}__ask_human"


def create_tool_server(tools: AgentTools) -> McpSdkServerConfig:
    """Return an MCP server with these tools."""
    return create_sdk_mcp_server(SERVER_NAME, tools=[_tool(tools, tool) for tool in tools.tools])


def _tool(tools: AgentTools, tool: ToolDefinition) -> SdkMcpTool[Any]:
    return SdkMcpTool(tool.name, tool.description, dict(tool.schema), partial(_call, tools, tool.name))


async def _call(tools: AgentTools, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reply = await tools.call(tool, arguments)
    return {"content": [{"type": "text", "text": reply.text}], "is_error": reply.is_error}
