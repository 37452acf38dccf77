"""Carry a tool call from an agent's sandbox to its tools on the host: one POST per call."""

import sys
from typing import Any

import msgspec

from kingdom.soldiers.agent_tools.port import AgentTools, ToolReply
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

# Enough for the largest call in its JSON wrapping, even if every character is escaped.
BODY_BYTES_MAX = 512_000


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call on its way to the host."""

    tool: str
    arguments: dict[str, Any] = {}


async def answer_tool_call(tools: AgentTools, body: bytes) -> bytes:
    """Answer a tool call; the call is the JSON object `{tool, arguments}`, the answer `{text, is_error}`."""
    if len(body) > BODY_BYTES_MAX:
        return msgspec.json.encode(ToolReply(text=f"the call has more than {BODY_BYTES_MAX} bytes", is_error=True))
    try:
        call = msgspec.json.decode(body, type=ToolRequest)
    except UNREADABLE_JSON as error:
        return msgspec.json.encode(ToolReply(text=f"this is not a tool call: {error}", is_error=True))
    return msgspec.json.encode(await tools.call(call.tool, call.arguments))


def relay_command(url: str) -> tuple[str, ...]:
    """Return the command of the MCP server that an agent starts; the server forwards tool calls to `url`."""
    # In isolated mode (-I) no file in the WorkSpace can replace a module of Python or Kingdom.
    return (sys.executable, "-I", "-m", "kingdom.soldiers.agent_tools.mcp_server", url)
