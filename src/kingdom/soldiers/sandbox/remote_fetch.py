"""Find parts of a model request that make the vendor fetch an address. An agent could send data out in that way."""

from collections.abc import Mapping
from typing import Any

# The vendor does not act on the arguments, parameters and results of the agent's own tools.
_ARGUMENTS = frozenset({"action", "args", "arguments", "parameters", "response"})
_DESCRIPTIONS = ("metadata", "schema")
_TOOL_CALLS = ("mcp_tool_use", "server_tool_use", "tool_use")
# Fields that take a file by its content, its id, or its address.
_FILES = frozenset({"filedata", "fileid"})
# In requests to Gemini these fields enable a tool, whatever their values are.
_SWITCHES = frozenset({"codeexecution", "urlcontext"})
_REMOTE_TOOLS = ("web_fetch", "code_execution", "code_interpreter", "container_")
_DATA_URL = "data:"


def find_remote_fetch(document: Any) -> str | None:
    """Return the part of a request that makes the vendor fetch an address of the agent's choice, or None."""
    waiting = [document]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, Mapping):
            if reason := _reason(found):
                return reason
            # The whole document is never a tool call, even if its `type` says so. Therefore its `input` is checked.
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
    return next(
        (name for name, value in part.items() if _makes_vendor_fetch(name.replace("_", "").lower(), value)), None
    )


def _makes_vendor_fetch(name: str, value: Any) -> bool:
    """Return whether a field makes the vendor fetch something. A field named just `url` or `uri` is only a citation."""
    if name in _SWITCHES or (name == "mcpservers" and value):
        return True
    address = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(address, str) or not address or address.startswith(_DATA_URL):
        return False
    return (name.endswith(("url", "uri")) and name not in {"url", "uri"}) or (name in _FILES and ":" in address)
