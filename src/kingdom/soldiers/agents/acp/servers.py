"""The MCP servers of an agent in the types of ACP, including the server of Kingdom's tools."""

from collections.abc import Iterator

from acp.schema import EnvVariable, HttpMcpServer, McpServerStdio, SseMcpServer

from kingdom.soldiers.agent_tools.port import SERVER_NAME
from kingdom.soldiers.agent_tools.relay import relay_command
from kingdom.soldiers.agents.port import Launch
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

AcpServer = HttpMcpServer | SseMcpServer | McpServerStdio


def mcp_servers(launch: Launch, tools_url: str) -> list[AcpServer]:
    """Return the MCP servers of a launch, and under its reserved name the server of the tools at `tools_url`."""
    servers = [_server_config(server) for server in launch.mcp_servers if server.name != SERVER_NAME]
    return [*servers, *_tool_server(tools_url)]


def _tool_server(tools_url: str) -> Iterator[AcpServer]:
    if tools_url:
        command, *rest = relay_command(tools_url)
        yield McpServerStdio(name=SERVER_NAME, command=command, args=rest, env=[])


def _server_config(server: McpServer) -> AcpServer:
    match server.transport:
        case McpTransport.STDIO:
            command, *rest = server.command
            variables = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
            return McpServerStdio(name=server.name, command=command, args=rest, env=variables)
        case McpTransport.SSE:
            return SseMcpServer(type="sse", name=server.name, url=server.url, headers=[])
        case McpTransport.STREAMABLE_HTTP:
            return HttpMcpServer(type="http", name=server.name, url=server.url, headers=[])
