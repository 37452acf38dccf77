"""The MCP servers of an agent in the words of ACP, the house's own among them."""

from collections.abc import Iterator

from acp.schema import EnvVariable, HttpMcpServer, McpServerStdio, SseMcpServer

from kingdom.soldiers.agent_tools.port import SERVER_NAME
from kingdom.soldiers.agent_tools.relay import relay_command
from kingdom.soldiers.agents.port import Launch
from kingdom.workflow.model.mcp import McpServer, Transport

AcpServer = HttpMcpServer | SseMcpServer | McpServerStdio


def mcp_servers(launch: Launch, voice_url: str) -> list[AcpServer]:
    """Return how each MCP server is reached; the name of the house's own, which is at `voice_url`, is not to be had."""
    servers = [_reached(server) for server in launch.mcp_servers if server.name != SERVER_NAME]
    return [*servers, *_house(voice_url)]


def _house(voice_url: str) -> Iterator[AcpServer]:
    if voice_url:
        command, *rest = relay_command(voice_url)
        yield McpServerStdio(name=SERVER_NAME, command=command, args=rest, env=[])


def _reached(server: McpServer) -> AcpServer:
    match server.transport:
        case Transport.STDIO:
            command, *rest = server.command
            variables = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
            return McpServerStdio(name=server.name, command=command, args=rest, env=variables)
        case Transport.SSE:
            return SseMcpServer(type="sse", name=server.name, url=server.url, headers=[])
        case Transport.STREAMABLE_HTTP:
            return HttpMcpServer(type="http", name=server.name, url=server.url, headers=[])
