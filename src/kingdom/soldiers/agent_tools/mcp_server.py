"""The tools as an MCP server over standard input and output, for agents that start MCP servers themselves.

`python -m kingdom.soldiers.agent_tools.mcp_server URL` forwards every call to the host, because only the host knows
which agent calls. URL is `http://HOST:PORT/voice` or `unix:SOCKET`. This module implements the part of MCP that tools
need, because the MCP library takes longer to load than agents wait.
"""

import asyncio
import json
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kingdom.errors import Misconfigured, describe_error
from kingdom.soldiers.agent_tools.calls import GUIDE, TOOLS
from kingdom.soldiers.agent_tools.port import SERVER_NAME, ToolDefinition, ToolReply
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
# The host answers every call sooner than this.
_ANSWER_SECONDS = 60.0
# How long calls may take to finish after the input ends: an agent that closes the input may still wait for answers.
_FINISH_SECONDS = 1.0
# The path of tool calls on the host. Settings of agents contain it, so its name stays.
_PATH = "/voice"
# Every call of these tools has an effect of its own, so a call that may have arrived must not be repeated.
_NOT_REPEATABLE = ("petition",)
# The error codes of JSON-RPC.
_PARSE_ERROR, _INVALID_REQUEST, _UNKNOWN_METHOD, _INVALID_PARAMETERS = -32700, -32600, -32601, -32602
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.error = {"code": code, "message": message}
        super().__init__(message)


def main(url: str) -> None:
    """Serve until the input ends."""
    _check_url(url)
    asyncio.run(_serve(url))


async def _serve(url: str) -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    answering: set[asyncio.Task[None]] = set()
    while (line := await lines.get()) is not None:
        if line.strip():
            task = asyncio.create_task(_handle_line(line, url))
            answering.add(task)
            task.add_done_callback(answering.discard)
    if answering:
        await asyncio.wait(answering, timeout=_FINISH_SECONDS)


async def _handle_line(line: bytes, url: str) -> None:
    message_id: Any = None
    try:
        message = _parse_message(line)
        message_id = message.get("id")
        if "method" not in message or "id" not in message:
            # A response or a notification needs no answer.
            return
        answer = {"result": await _answer(str(message["method"]), message.get("params") or {}, url)}
    except _RpcError as refused:
        answer = {"error": refused.error}
    _write({"jsonrpc": "2.0", "id": message_id, **answer})


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        # msgspec would reject half a surrogate pair, but a call that contains one needs an answer too.
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _RpcError(_PARSE_ERROR, f"this is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise _RpcError(_INVALID_REQUEST, "a message is one JSON object per line")
    return message


async def _answer(method: str, parameters: Any, url: str) -> dict[str, Any]:
    if not isinstance(parameters, dict):
        raise _RpcError(_INVALID_PARAMETERS, "params must be an object")
    match method:
        case "initialize":
            wanted = parameters.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in _VERSIONS else _VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": SERVER_NAME, "version": "1"},
                "instructions": GUIDE,
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [_describe_tool(tool) for tool in TOOLS]}
        case "tools/call":
            reply = await _call(parameters, url)
            return {"content": [{"type": "text", "text": reply.text}], "isError": reply.is_error}
    raise _RpcError(_UNKNOWN_METHOD, f"there is no method {method[:100]!r} here")


def _describe_tool(tool: ToolDefinition) -> dict[str, Any]:
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    # Without `alwaysLoad` Claude Code hides the tools until the model searches for them.
    return {**shown, "_meta": {"anthropic/alwaysLoad": True}}


async def _call(parameters: dict[str, Any], url: str) -> ToolReply:
    call = {"tool": parameters.get("name"), "arguments": parameters.get("arguments") or {}}
    connection = None
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            connection = await _connect(url)
            return msgspec.json.decode(await _post(connection, url, json.dumps(call).encode()), type=ToolReply)
    except TimeoutError:
        reason = f"no answer within {_ANSWER_SECONDS:.0f} seconds"
    except (OSError, *UNREADABLE_JSON) as error:
        reason = describe_error(error)
    return ToolReply(text=_describe_failure(str(call["tool"]), reason, is_sent=connection is not None), is_error=True)


def _describe_failure(tool: str, reason: str, *, is_sent: bool) -> str:
    """Say why a call has no answer, whether it can have arrived, and what the agent does next."""
    retry = "Call it again; if that does not help, write your result to the file that .kingdom-task.json names."
    if not is_sent:
        return f"{tool} did not reach the host ({reason}). {retry}"
    unclear = f"{tool} got no readable answer from the host ({reason}). The call may have arrived."
    if tool in _NOT_REPEATABLE:
        return (
            f"{unclear} Do not call it again for the same purpose: continue, and say in your result that you do not"
            " know whether it arrived."
        )
    return f"{unclear} A second call does no harm. {retry}"


async def _connect(url: str) -> _Connection:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(parts.path)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _post(connection: _Connection, url: str, body: bytes) -> bytes:
    """Send a request and return the body of the answer; raises OSError if no good answer comes."""
    reader, writer = connection
    parts = urlsplit(url)
    try:
        head = (
            f"POST {_PATH if parts.scheme == 'unix' else parts.path or _PATH} HTTP/1.1",
            f"Host: {parts.netloc or 'localhost'}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        writer.write("\r\n".join((*head, "", "")).encode() + body)
        received = await reader.read()
    finally:
        writer.close()
    answer_head, _, content = received.partition(b"\r\n\r\n")
    if not answer_head:
        raise OSError("it closed the connection")
    status_line = answer_head.splitlines()[0]
    if status_line.split(b" ", 2)[1:2] != [b"200"]:
        raise OSError(f"it answered {status_line.decode(errors='replace')}")
    return content


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if not (parts.path if parts.scheme == "unix" else parts.scheme == "http" and parts.hostname and parts.port):
        raise Misconfigured(f"{url!r} is not the address of agent tools: write http://HOST:PORT/voice or unix:SOCKET")


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2] or [""])
    except Misconfigured as error:
        sys.exit(str(error))
