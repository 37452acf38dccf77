"""The MCP servers of an agent in the words of ACP, the house's own among them."""

from collections.abc import Iterator

from acp.schema import EnvVariable, HttpMcpServer, McpServerStdio, SseMcpServer

from kingdom.soldiers.agent import Launch
from kingdom.soldiers.voice.relay import relay_command
from kingdom.soldiers.voice.voice import SERVER
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

AcpServer = HttpMcpServer | SseMcpServer | McpServerStdio


def mcp_servers(launch: Launch, voice_url: str) -> list[AcpServer]:
    """Return how each MCP server is reached; the name of the house's own, which is at `voice_url`, is not to be had."""
    servers = [_reached(server) for server in launch.mcp_servers if server.name != SERVER]
    return [*servers, *_house(voice_url)]


def _house(voice_url: str) -> Iterator[AcpServer]:
    if voice_url:
        command, *rest = relay_command(voice_url)
        yield McpServerStdio(name=SERVER, command=command, args=rest, env=[])


def _reached(server: McpServer) -> AcpServer:
    match server.transport:
        case McpTransport.STDIO:
            command, *rest = server.command
            variables = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
            return McpServerStdio(name=server.name, command=command, args=rest, env=variables)
        case McpTransport.SSE:
            return SseMcpServer(type="sse", name=server.name, url=server.url, headers=[])
        case McpTransport.STREAMABLE_HTTP:
            return HttpMcpServer(type="http", name=server.name, url=server.url, headers=[])
