"""`kingdom agent-mcp`: serve the tools of an agent over MCP on standard input and output."""

from typing import Annotated

import typer

from kingdom.errors import Misconfigured
from kingdom.settings import read_environment
from kingdom.soldiers.agent_tools import mcp_server as server

app = typer.Typer(add_completion=False)
_VARIABLE = "KINGDOM_VOICE_URL"


@app.command("agent-mcp")
def agent_mcp(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help=f"http://HOST:PORT/voice or unix:SOCKET; by default {_VARIABLE}.")
    ] = "",
) -> None:
    """Serve the tools of Kingdom to an agent, which starts this command itself.

    The tools are report_result, ask_human, petition, remember and read_results.

    Example: kingdom agent-mcp http://127.0.0.1:8099/voice
    """
    address = url or read_environment(_VARIABLE)
    if not address:
        raise Misconfigured(f"the address of the agent's tools is missing: give a URL, or set {_VARIABLE}")
    server.main(address)
