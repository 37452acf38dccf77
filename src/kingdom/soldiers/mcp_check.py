"""Check an MCP server before agents rely on it: start or call it, and list its tools."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kingdom.errors import Misconfigured, ProgramFailed, describe_error
from kingdom.soldiers.checkouts.repository import without_password
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import Program, start_program
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

# How long a server may take to answer. A command such as npx may have to download the server first.
_COMMAND_LIMIT = timedelta(seconds=30)
_URL_LIMIT = timedelta(seconds=10)
# How long a server may take to shut down.
_GRACE_SECONDS = 2.0
_SHOWN_BYTES = 2000


class _NoAnswer(ProgramFailed):
    """Raised when a server does not answer in time."""


def answer_limit(server: McpServer) -> timedelta:
    """Return how long a server may take to answer."""
    return _COMMAND_LIMIT if server.transport is McpTransport.STDIO else _URL_LIMIT


async def check_mcp_server(server: McpServer, *, limit: timedelta | None = None) -> tuple[str, ...]:
    """Return the names of a server's tools; raises ProgramFailed with the reason if it cannot be used.

    Raises Misconfigured if its program or the MCP library is missing. A failure is retried once, but a timeout is not.
    No process is left running afterwards. A command runs as it would for an agent: in its own folder, and with few
    environment variables besides those of the server.
    """
    limit = limit or answer_limit(server)
    try:
        return await _fetch_tools(server, limit)
    except _NoAnswer:
        raise
    except ProgramFailed:
        return await _fetch_tools(server, limit)


async def _fetch_tools(server: McpServer, limit: timedelta) -> tuple[str, ...]:
    client_class = _import_sdk("mcp").Client
    with TemporaryDirectory(prefix="kingdom-mcp-") as folder:
        tested, error_class = _ServerUnderTest(Path(folder)), ProgramFailed
        try:
            async with asyncio.timeout(limit.total_seconds()), client_class(_transport(server, tested)) as client:
                return await _list_tools(client)
        except TimeoutError:
            error_class, reason = _NoAnswer, f"it did not answer within {limit.total_seconds():g} s"
        except (ProgramFailed, Misconfigured):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, the server cannot be used
            reason = tested.end or f"it does not speak MCP as expected ({_root_cause(error)})"
        what = without_password(server.url) or " ".join(server.command)
        raise error_class(
            f"MCP server {server.name!r} ({server.transport}, {what}) cannot be used: {reason}{tested.tail()}"
        )


class _ServerUnderTest:
    """The output and the end of a server that is being checked.

    `stray` is output that is not a message, `errors` the file with the standard error, `end` how the server ended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        self.end = ""
        self.stray = b""

    def tail(self) -> str:
        """Return the last part of the stray output and of the standard error, as the end of an error message."""
        written = self.errors.read_bytes() if self.errors.exists() else b""
        words = (self.stray + written)[-_SHOWN_BYTES:].decode(errors="replace").strip()
        return f"; it wrote last: {words}" if words else ""


async def _list_tools(client: Any) -> tuple[str, ...]:
    names: list[str] = []
    if client.server_capabilities.tools is None:
        return ()
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            return tuple(names)


def _transport(server: McpServer, tested: _ServerUnderTest) -> AbstractAsyncContextManager[Any]:
    connection: AbstractAsyncContextManager[Any]
    match server.transport:
        case McpTransport.STDIO:
            connection = _running_server(server, tested)
        case McpTransport.SSE:
            connection = _import_sdk("mcp.client.sse").sse_client(server.url)
        case McpTransport.STREAMABLE_HTTP:
            connection = _import_sdk("mcp.client.streamable_http").streamable_http_client(server.url)
    return connection


@asynccontextmanager
async def _running_server(server: McpServer, tested: _ServerUnderTest) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and exchange messages with it line by line; at the end of the block kill all its processes."""
    streams = import_module("anyio")
    environment = _import_sdk("mcp.client.stdio").get_default_environment() | server.env
    if shutil.which(server.command[0], path=environment.get("PATH")) is None:
        raise Misconfigured(
            f"MCP server {server.name!r}: there is no program {server.command[0]!r} on PATH: install it, or write its"
            " absolute path"
        )
    program = await start_program(server.command, cwd=tested.folder, environment=environment, errors=tested.errors)
    to_client, incoming = streams.create_memory_object_stream()
    outgoing, from_client = streams.create_memory_object_stream()
    reading = asyncio.create_task(_read(program, to_client, tested))
    writing = asyncio.create_task(_write(program, from_client))
    try:
        yield incoming, outgoing
    finally:
        ended_itself = reading.done()
        try:
            program.close_input()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await program.wait()
        finally:
            code = await program.kill()
            if ended_itself:
                tested.end = f"it ended with {describe_exit(code)} before it answered"
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)


async def _read(program: Program, to_client: Any, tested: _ServerUnderTest) -> None:
    """Forward every message of a server to the client until the output of the server ends."""
    parse_message = _import_sdk("mcp.types").jsonrpc_message_adapter.validate_json
    session_message = _import_sdk("mcp.shared.message").SessionMessage
    async with to_client:
        async for line in program.lines():
            try:
                message = parse_message(line, by_name=False)
            except ValueError:
                tested.stray = (tested.stray + line + b"\n")[-_SHOWN_BYTES:]
            else:
                await to_client.send(session_message(message))


async def _write(program: Program, from_client: Any) -> None:
    async with from_client:
        async for sent in from_client:
            program.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


def _import_sdk(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"checking MCP servers needs a library that is not installed ({error}): pip install 'kingdom[mcp]',"
            " or skip the check with --no-check"
        ) from error


def _root_cause(error: BaseException) -> str:
    """Return the message of the innermost error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return describe_error(error)
