"""What a request to a model would have the vendor fetch: an address that an agent chose can carry away what it read."""

from collections.abc import Mapping
from typing import Any

# What agents give to tools, and what tools take, is nothing that the vendor acts upon.
_ARGUMENTS = frozenset({"args", "arguments", "functionCall", "functionResponse", "input_schema", "parameters"})
_TOOL_CALLS = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})
_ADDRESSES = frozenset({"fileUri", "file_uri", "file_url", "mcp_servers", "server_url", "urlContext", "url_context"})
_REMOTE_TOOLS = ("web_fetch", "code_execution", "code_interpreter")
_HERE = "data:"


def reaching_out(document: Any) -> str | None:
    """Return what in a request would make the vendor reach out to where the agent wants, or None."""
    waiting = [document]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, Mapping):
            if reason := _reason(found):
                return reason
            arguments = _ARGUMENTS | {"input"} if found.get("type") in _TOOL_CALLS else _ARGUMENTS
            waiting.extend(value for name, value in found.items() if name not in arguments)
    return None


def _reason(part: Mapping[str, Any]) -> str | None:
    for name in _ADDRESSES & part.keys():
        if part[name]:
            return name
    kind = part.get("type")
    if kind == "url" and "url" in part:
        return "a source that is an address"
    if isinstance(kind, str) and kind.startswith(_REMOTE_TOOLS) and "content" not in part:
        return f"the tool {kind}"
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, Mapping) else image
    return "image_url" if isinstance(address, str) and not address.startswith(_HERE) else None
