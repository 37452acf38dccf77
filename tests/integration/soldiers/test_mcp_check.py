"""Real MCP servers are checked: good ones list their tools, bad ones get a reason, and none is left running."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from bench.servers import free_port
from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers import mcp_check
from kingdom.soldiers.mcp_check import answer_limit, check_mcp_server
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from tests.integration.running import eventually
from tests.integration.soldiers.processes import MARK, growing_limits, marked, until_none, until_runs
from tests.patience import PATIENCE_SECONDS

SCRIPT = str(Path(__file__).parent / "mcp_server.py")
TOOLS = ("lend", "give_back")
LONG = timedelta(seconds=PATIENCE_SECONDS)


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark in the environment of all processes of a test. At the end no process with it may be left."""
    mark = uuid4().hex
    yield mark
    assert marked(mark) == []


@pytest.fixture
def brief_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the grace period of servers, because these never end by themselves."""
    monkeypatch.setattr(mcp_check, "_GRACE_SECONDS", 0.1)


def program(mark: str, *command: str) -> McpServer:
    env = {MARK: mark, "SHELF": "of glass"}
    return McpServer(id="shelf", name="shelf", transport=McpTransport.STDIO, command=command, env=env)


def script(mark: str, *words: str) -> McpServer:
    return program(mark, sys.executable, SCRIPT, *words)


def calls_of(server: socket.socket) -> int:
    """Return how often a server was called."""
    called = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            called += 1
    return called


@asynccontextmanager
async def serving(manner: str) -> AsyncIterator[str]:
    """Run the server on a free port of this host; yields its address without the path."""
    port = free_port()
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, manner, str(port), stdin=quiet, stdout=quiet, stderr=quiet
    )

    async def listens() -> bool:
        assert process.returncode is None
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)


async def test_a_started_server_lists_its_tools_and_is_ended(mark: str) -> None:
    assert await check_mcp_server(script(mark, "stdio"), limit=LONG) == TOOLS


async def test_a_server_over_http_lists_its_tools() -> None:
    async with serving("http") as address:
        server = McpServer(id="s", name="s", transport=McpTransport.STREAMABLE_HTTP, url=f"{address}/mcp")
        assert await check_mcp_server(server, limit=LONG) == TOOLS
        elsewhere = McpServer(id="s", name="s", transport=McpTransport.STREAMABLE_HTTP, url=f"{address}/elsewhere")
        with pytest.raises(
            ProgramFailed, match=r"\(STREAMABLE_HTTP, .*/elsewhere\) cannot be used: it does not speak MCP"
        ):
            await check_mcp_server(elsewhere, limit=LONG)


async def test_a_server_over_sse_lists_its_tools() -> None:
    async with serving("sse") as address:
        server = McpServer(id="s", name="s", transport=McpTransport.SSE, url=f"{address}/sse")
        assert await check_mcp_server(server, limit=LONG) == TOOLS


async def test_an_address_without_a_listener_is_reported() -> None:
    port = free_port()
    for transport in (McpTransport.SSE, McpTransport.STREAMABLE_HTTP):
        url = f"http://me:secret@127.0.0.1:{port}/mcp"
        with pytest.raises(ProgramFailed, match="connection") as failed:
            await check_mcp_server(McpServer(id="s", name="s", transport=transport, url=url), limit=LONG)
        assert "secret" not in str(failed.value)


async def test_an_address_that_never_answers_is_reported_after_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        server = McpServer(id="s", name="s", transport=McpTransport.STREAMABLE_HTTP, url=url)
        silent.settimeout(0)
        for limit in growing_limits():
            with pytest.raises(ProgramFailed, match=f"it did not answer within {limit.total_seconds():g} s"):
                await check_mcp_server(server, limit=limit)
            # The server is not called a second time.
            if called := calls_of(silent):
                assert called == 1
                break
        assert answer_limit(server) < answer_limit(program("", "true"))


async def test_a_server_that_crashes_at_its_start_is_reported_with_its_last_output(mark: str) -> None:
    with pytest.raises(ProgramFailed, match=r"ended with exit code 1 .* it wrote last: the shelf of glass has fallen"):
        await check_mcp_server(script(mark, "crash"), limit=LONG)


@pytest.mark.usefixtures("brief_grace")
async def test_a_server_that_hangs_is_ended_with_everything_it_started(mark: str) -> None:
    for limit in growing_limits():
        with pytest.raises(ProgramFailed, match=f"did not answer within {limit.total_seconds():g} s") as failed:
            await check_mcp_server(script(mark, "hang"), limit=limit)
        assert marked(mark) == []
        if str(failed.value).endswith("; it wrote last: the shelf is being dusted"):
            break


@pytest.mark.usefixtures("brief_grace")
async def test_a_cancelled_check_ends_the_server_that_it_started(mark: str) -> None:
    trial = asyncio.create_task(check_mcp_server(script(mark, "hang"), limit=LONG))
    await until_runs(mark, "sleep 600")
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    await until_none(mark)


async def test_a_missing_program_is_reported_at_once(mark: str) -> None:
    with pytest.raises(Misconfigured, match="there is no program 'no-such-program' on PATH: install it"):
        await check_mcp_server(program(mark, "no-such-program"))


async def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(Misconfigured, match=r"pip install 'kingdom\[mcp\]', or skip the check with --no-check"):
        await check_mcp_server(program("", "true"))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("echo", "hello"), "ended with exit code 0 before it answered; it wrote last: hello"),
        (("cat",), "it does not speak MCP as expected"),
    ],
)
async def test_a_program_that_is_not_an_mcp_server_is_reported(
    mark: str, command: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ProgramFailed, match=reason):
        await check_mcp_server(program(mark, *command), limit=LONG)


async def test_a_server_that_fails_once_gets_a_second_try(mark: str, tmp_path: Path) -> None:
    once = f"if [ -e {tmp_path}/tried ]; then exec {sys.executable} {SCRIPT} stdio; fi; touch {tmp_path}/tried; exit 3"
    assert await check_mcp_server(program(mark, "sh", "-c", once), limit=LONG) == TOOLS
