"""Trying an MCP server out before agents rely on it: it is really started or called, and asked for its tools."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.process import Program, start_program
from kingdom.soldiers.process_table import described
from kingdom.soldiers.repository import without_password
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

# A program may have to be downloaded first; an address answers or does not.
_LIMIT_OF_PROGRAM = timedelta(seconds=30)
_LIMIT_OF_ADDRESS = timedelta(seconds=10)
# A server that was told to end may put its things in order.
_GRACE_SECONDS = 2.0
_SHOWN = 2000


class _Silent(ProgramFailed):
    """Raised when a server did not answer in time."""


def limit_of(server: McpServer) -> timedelta:
    """Return how long a server may take to answer."""
    return _LIMIT_OF_PROGRAM if server.transport is McpTransport.STDIO else _LIMIT_OF_ADDRESS


async def validate(server: McpServer, *, limit: timedelta | None = None) -> tuple[str, ...]:
    """Return the names of the tools of a server; raises ProgramFailed with the reason if it cannot be used.

    One that fails is tried twice, one that is silent until the limit is not; whatever was started has ended afterwards.
    A program is started as for an agent: in a folder of its own, and with little more than its own environment.
    """
    limit = limit or limit_of(server)
    try:
        return await _tools_of(server, limit)
    except _Silent:
        raise
    except ProgramFailed:
        return await _tools_of(server, limit)


async def _tools_of(server: McpServer, limit: timedelta) -> tuple[str, ...]:
    client_of = _sdk("mcp").Client
    with TemporaryDirectory(prefix="kingdom-mcp-") as folder:
        trial, failure = _Trial(Path(folder)), ProgramFailed
        try:
            async with asyncio.timeout(limit.total_seconds()), client_of(_transport(server, trial)) as client:
                return await _list_tools(client)
        except TimeoutError:
            failure, reason = _Silent, f"it did not answer within {limit.total_seconds():g} s"
        except (ProgramFailed, Misconfigured):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, the server could not be used
            reason = trial.end or f"speaking MCP with it failed ({_words(error)})"
        what = without_password(server.url) or " ".join(server.command)
        raise failure(f"MCP server {server.name!r} ({server.transport}, {what}) cannot be used: {reason}{trial.tail()}")


class _Trial:
    """What is known of a program that is tried out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        self.end = ""
        self.stray = b""

    def tail(self) -> str:
        """Return the last of what it wrote that was no answer."""
        written = self.errors.read_bytes() if self.errors.exists() else b""
        words = (self.stray + written)[-_SHOWN:].decode(errors="replace").strip()
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


def _transport(server: McpServer, trial: _Trial) -> AbstractAsyncContextManager[Any]:
    connection: AbstractAsyncContextManager[Any]
    match server.transport:
        case McpTransport.STDIO:
            connection = _started(server, trial)
        case McpTransport.SSE:
            connection = _sdk("mcp.client.sse").sse_client(server.url)
        case McpTransport.STREAMABLE_HTTP:
            connection = _sdk("mcp.client.streamable_http").streamable_http_client(server.url)
    return connection


@asynccontextmanager
async def _started(server: McpServer, trial: _Trial) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server, and speak with it line by line; it ends with the block, and all it started with it."""
    streams = import_module("anyio")
    environment = _sdk("mcp.client.stdio").get_default_environment() | server.env
    if shutil.which(server.command[0], path=environment.get("PATH")) is None:
        raise Misconfigured(
            f"MCP server {server.name!r}: there is no program {server.command[0]!r} on PATH: install it, or write where"
            " it is, from / on"
        )
    program = await start_program(server.command, cwd=trial.folder, environment=environment, errors=trial.errors)
    to_client, incoming = streams.create_memory_object_stream()
    outgoing, from_client = streams.create_memory_object_stream()
    reading = asyncio.create_task(_read(program, to_client, trial))
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
                trial.end = f"it ended with {described(code)} before it had answered"
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)


async def _read(program: Program, to_client: Any, trial: _Trial) -> None:
    """Hand on every message of a server; the end of its output is the end of the conversation."""
    message_of = _sdk("mcp.types").jsonrpc_message_adapter.validate_json
    session_message = _sdk("mcp.shared.message").SessionMessage
    async with to_client:
        async for line in program.lines():
            try:
                message = message_of(line, by_name=False)
            except ValueError:
                trial.stray = (trial.stray + line + b"\n")[-_SHOWN:]
            else:
                await to_client.send(session_message(message))


async def _write(program: Program, from_client: Any) -> None:
    async with from_client:
        async for sent in from_client:
            program.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


def _sdk(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"MCP servers are tried out with a library that is not installed ({error}): pip install 'kingdom[mcp]',"
            " or skip it with --no-check"
        ) from error


def _words(error: BaseException) -> str:
    """Return what went wrong at the bottom of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
