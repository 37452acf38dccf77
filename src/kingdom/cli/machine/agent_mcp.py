"""`kingdom agent-mcp`: the tools of an agent as an MCP server over standard input and output."""

from typing import Annotated

import typer

from kingdom.errors import Misconfigured
from kingdom.settings import read_environment
from kingdom.soldiers.voice import server

app = typer.Typer(add_completion=False)
_VARIABLE = "KINGDOM_VOICE_URL"


@app.command("agent-mcp")
def agent_mcp(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help=f"http://HOST:PORT/voice or unix:SOCKET; else {_VARIABLE}.")
    ] = "",
) -> None:
    """Serve report_result, ask_human, petition and remember to an agent, which starts this itself.

    Example: kingdom agent-mcp http://127.0.0.1:8099/voice
    """
    place = url or read_environment(_VARIABLE)
    if not place:
        raise Misconfigured(f"nobody says where the voice of the agent is: give its URL, or set {_VARIABLE}")
    server.main(place)
