"""An MCP server with two tools. Its arguments choose the transport, or how it misbehaves."""

import os
import subprocess
import sys


def serve(manner: str, *words: str) -> None:
    """Serve until the process is ended."""
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - slow to import, and not needed to crash or hang

    server = MCPServer("shelf")

    @server.tool()
    def lend(title: str) -> str:
        """Lend a book."""
        return f"{title} is lent"

    @server.tool()
    def give_back(title: str) -> str:
        """Take a book back."""
        return f"{title} is back"

    match manner:
        case "stdio":
            server.run("stdio")
        case "sse":
            server.run("sse", port=int(words[0]))
        case "http":
            server.run("streamable-http", port=int(words[0]))


def main(manner: str, *words: str) -> None:
    """Crash, hang or serve, as `manner` says."""
    match manner:
        case "crash":
            sys.exit(f"the shelf {os.environ['SHELF']} has fallen down")
        case "hang":
            # A child in its own session, which a signal to the group would not reach.
            with subprocess.Popen(["sleep", "600"], start_new_session=True):
                sys.stderr.write("the shelf is being dusted\n")
                sys.stderr.flush()
        case _:
            serve(manner, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
