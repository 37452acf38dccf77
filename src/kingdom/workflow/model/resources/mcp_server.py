"""MCP servers that agents may call."""

from collections.abc import Collection
from enum import StrEnum

import msgspec

from kingdom.errors import Misconfigured
from kingdom.workflow.model.messages.events import McpServerRegistered, McpServerUnregistered
from kingdom.workflow.model.resources.registered_resource import RegisteredResource


class McpTransport(StrEnum):
    """The transport of an MCP server."""

    STDIO = "STDIO"
    SSE = "SSE"
    STREAMABLE_HTTP = "STREAMABLE_HTTP"


class McpServer(RegisteredResource, frozen=True, kw_only=True):
    """An MCP server: a command that starts it (STDIO), or its URL (the other transports)."""

    name: str
    transport: McpTransport
    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        needed = "command" if self.transport is McpTransport.STDIO else "url"
        if not getattr(self, needed):
            raise Misconfigured(f"MCP server {self.name!r} uses {self.transport} and needs a {needed}")

    def registered_event(self) -> McpServerRegistered:
        """Return the event of a new McpServer."""
        return McpServerRegistered(mcp_server_id=self.id)

    def unregister(self, users: Collection[str]) -> tuple["McpServer", McpServerUnregistered]:
        """Return the unregistered McpServer and its event. Refuse this while a Workflow uses the McpServer."""
        self.refuse_while_used("mcp server", "unregister", users)
        return msgspec.structs.replace(self, deleted=True, deleting=False), McpServerUnregistered(mcp_server_id=self.id)
