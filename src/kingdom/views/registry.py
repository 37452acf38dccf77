"""Repositories and MCP servers."""

import msgspec

from kingdom.workflow import registry
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpTransport


class GitDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A repository, and the runs and templates that use it."""

    git: Git
    users: registry.ResourceUsers


class McpServerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server without its secrets: `env` has only the names of variables."""

    id: str
    name: str
    transport: McpTransport
    command: tuple[str, ...]
    url: str
    env: list[str]
    deleted: bool
    deleting: bool


class RegisteredMcpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A new MCP server, and its tools if it was checked."""

    server: McpServerDetails
    tools: tuple[str, ...] | None


class McpServerWithUsers(RegisteredMcpServer, frozen=True, kw_only=True):
    """An MCP server, the runs and templates that use it, and its tools if it was checked."""

    users: registry.ResourceUsers
