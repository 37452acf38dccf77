"""What a request to a model would have the vendor fetch: an address that an agent chose can carry away what it read."""

from collections.abc import Mapping
from typing import Any

# What agents give to tools, what tools take, and what a model has done is nothing that the vendor acts upon.
_ARGUMENTS = frozenset({"action", "args", "arguments", "parameters", "response"})
_DESCRIPTIONS = ("metadata", "schema")
_TOOL_CALLS = ("mcp_tool_use", "server_tool_use", "tool_use")
# Where vendors and those who speak like them take a whole file, by its content, its number or its address.
_FILES = frozenset({"filedata", "fileid"})
# Gemini switches these on by their mere name, with nothing in them.
_SWITCHES = frozenset({"codeexecution", "urlcontext"})
_REMOTE_TOOLS = ("web_fetch", "code_execution", "code_interpreter", "container_")
_HERE = "data:"


def find_remote_fetch(document: Any) -> str | None:
    """Return what in a request would make the vendor reach out to where the agent wants, or None."""
    waiting = [document]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, Mapping):
            if reason := _reason(found):
                return reason
            # The request itself is no call, whatever it calls itself: its input is what the vendor reads.
            is_call = found is not document and found.get("type") in _TOOL_CALLS
            waiting.extend(
                value
                for name, value in found.items()
                if not (name in _ARGUMENTS or name.lower().endswith(_DESCRIPTIONS) or (is_call and name == "input"))
            )
    return None


def _reason(part: Mapping[str, Any]) -> str | None:
    kind = part.get("type")
    if kind == "url" and "url" in part:
        return "a source that is an address"
    if isinstance(kind, str) and (kind == "mcp" or (kind.startswith(_REMOTE_TOOLS) and "_result" not in kind)):
        return f"the tool {kind}"
    return next((name for name, value in part.items() if _reaches_out(name.replace("_", "").lower(), value)), None)


def _reaches_out(name: str, value: Any) -> bool:
    """Tell whether the vendor would go where this says; a bare url or uri only tells where something came from."""
    if name in _SWITCHES or (name == "mcpservers" and value):
        return True
    address = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(address, str) or not address or address.startswith(_HERE):
        return False
    return (name.endswith(("url", "uri")) and name not in {"url", "uri"}) or (name in _FILES and ":" in address)
