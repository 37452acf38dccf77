"""The tools of Kingdom as a real MCP server, tested with the official client and with raw lines."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from kingdom.soldiers.agent_tools.calls import TOOLS
from kingdom.soldiers.agent_tools.port import SERVER_NAME
from kingdom.soldiers.agent_tools.relay import relay_command
from kingdom.soldiers.mcp_check import check_mcp_server
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.turns.result import read_result
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.past_results import NOTICE
from kingdom.workflow.verdicts import PetitionVerdict
from tests.integration.soldiers.tools_host import ToolHost, open_tool_host
from tests.patience import PATIENCE_SECONDS

NAMES = tuple(tool.name for tool in TOOLS)
COMMAND_LINE = (sys.executable, "-c", "from kingdom.cli.machine.agent_mcp import app; app()")
SUCCESS = {"status": "success", "summary": "all good"}
PETITION = {"kind": "github.comment", "body": {"body": "hi"}}


@pytest.fixture
async def tool_host(tmp_path: Path) -> AsyncIterator[ToolHost]:
    async with open_tool_host(
        tmp_path, tmp_path / "socket", verdict=PetitionVerdict(granted=False, reason="not today")
    ) as tool_host:
        yield tool_host


@asynccontextmanager
async def client_of(*command: str, **environment: str) -> AsyncIterator[Client]:
    program, *words = command
    server = StdioServerParameters(command=program, args=words, env=environment)
    async with asyncio.timeout(PATIENCE_SECONDS), Client(server) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    return bool(result.is_error), "".join(getattr(part, "text", "") for part in result.content)


async def exchange(url: str, *lines: str, answers: int = 0) -> list[dict[str, Any]]:
    """Send lines to the server, close its input after this many answers, and return all its answers."""
    process = await asyncio.create_subprocess_exec(
        *relay_command(url), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            first = [await process.stdout.readline() for _ in range(answers)]
            rest, _ = await process.communicate(b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in b"".join([*first, rest]).splitlines()]


def request(method: str, message_id: int = 1, **parameters: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": parameters})


async def test_an_agent_reads_earlier_results_through_the_official_client(tool_host: ToolHost) -> None:
    async with client_of(*relay_command(tool_host.url)) as client:
        failed, text = await called(client, "read_results", count=1)
        assert (failed, text.splitlines()[0]) == (False, NOTICE)
        assert text.endswith("gen-pr, github.pr.comment, acme/shop: success\n> The cache is stale.")
        assert "task-20260101-002" not in text
        refused, why = await called(client, "read_results", count=21)
        assert (refused, "Correct it, and call read_results again" in why) == (True, True)


async def test_the_official_client_is_offered_the_tools_and_their_guide(tool_host: ToolHost) -> None:
    async with client_of(*relay_command(tool_host.url)) as client:
        tools = (await client.list_tools()).tools
        assert tuple(tool.name for tool in tools) == NAMES
        assert [tool.input_schema for tool in tools] == [tool.schema for tool in TOOLS]
        assert "report_result" in (client.instructions or "")


async def test_the_official_client_reports_a_result_over_both_transports(tool_host: ToolHost, tmp_path: Path) -> None:
    for number, place in enumerate((tool_host.url, f"unix:{tool_host.socket}")):
        async with client_of(*relay_command(place)) as client:
            assert await called(client, "remember", text=f"Sentence {number}.") == (
                False,
                "It is stored. Agents after you get it once you have reported your result.",
            )
            is_error, _ = await called(client, "report_result", **SUCCESS)
            assert not is_error
    learned = [{"about": "patterns", "text": f"Sentence {number}."} for number in range(2)]
    assert read_result(tmp_path) == {**SUCCESS, "memory_updates": learned}


async def test_the_official_client_receives_verdicts_and_errors_about_its_arguments(tool_host: ToolHost) -> None:
    async with client_of(*relay_command(tool_host.url)) as client:
        is_error, text = await called(client, "petition", kind="github.comment", body={"body": "hi"})
        assert is_error
        assert "not today" in text
        is_error, text = await called(client, "report_result", status="failed", summary="no")
        assert is_error
        assert "error must not be empty" in text
        await called(client, "ask_human", question="Which one?")
    assert tool_host.petitions == [("github.comment", {"body": "hi"})]
    question = tool_host.tools.end()
    assert question is not None
    assert question.text == "Which one?"


async def test_the_command_line_relays_to_the_agent_tools_at_the_address_in_the_environment(
    tool_host: ToolHost, tmp_path: Path
) -> None:
    async with client_of(*COMMAND_LINE, KINGDOM_VOICE_URL=tool_host.url) as client:
        await called(client, "report_result", **SUCCESS)
    assert read_result(tmp_path) == SUCCESS


async def test_the_check_of_mcp_servers_lists_the_tools_of_kingdom(tool_host: ToolHost) -> None:
    server = McpServer(
        id=SERVER_NAME,
        name=SERVER_NAME,
        transport=McpTransport.STDIO,
        command=relay_command(tool_host.url),
        url="",
        env={},
    )
    assert await check_mcp_server(server, limit=timedelta(seconds=PATIENCE_SECONDS)) == NAMES


@pytest.mark.parametrize(("tool", "arguments"), [("report_result", SUCCESS), ("petition", PETITION)])
async def test_an_agent_repeats_a_call_that_was_not_sent(tool: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    async with client_of(*relay_command(f"unix:{tmp_path}/nobody")) as client:
        is_error, text = await called(client, tool, **arguments)
        assert is_error
        assert text.startswith(f"{tool} did not reach the host (")
        assert "Call it again; if that does not help, write your result to the file that .kingdom-task.json" in text


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "it answered HTTP/1.1 500 Internal Server Error"),
        (b"HTTP/1.1 200 OK\r\n\r\nnonsense", "JSON is malformed"),
    ],
)
async def test_an_agent_repeats_any_call_without_a_readable_answer_except_a_petition(
    response: bytes, reason: str, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}}")
        writer.write(response)
        writer.close()

    async with (
        await asyncio.start_unix_server(answer, tmp_path / "host"),
        client_of(*relay_command(f"unix:{tmp_path}/host")) as client,
    ):
        _, of_result = await called(client, "report_result", **SUCCESS)
        _, of_petition = await called(client, "petition", **PETITION)
    assert of_result.startswith(f"report_result got no readable answer from the host ({reason}")
    assert "The call may have arrived. A second call does no harm. Call it again; if" in of_result
    assert of_petition.startswith(f"petition got no readable answer from the host ({reason}")
    assert "The call may have arrived. Do not call it again for the same purpose:" in of_petition


async def test_concurrent_calls_are_all_answered(tool_host: ToolHost, tmp_path: Path) -> None:
    async with client_of(*relay_command(tool_host.url)) as client:
        await asyncio.gather(*(called(client, "remember", text=f"Sentence {number}.") for number in range(20)))
        await called(client, "report_result", **SUCCESS)
    assert len((read_result(tmp_path) or {})["memory_updates"]) == 20


async def test_a_line_that_is_not_a_message_is_refused_and_the_server_continues(tool_host: ToolHost) -> None:
    answers = await exchange(
        tool_host.url,
        "nonsense",
        "[]",
        "[" * 100_000,
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request("resources/list", 2),
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": [1]}),
        request("tools/call", 4),
        request("tools/call", 5, name="remember", arguments={"text": "\ud800"}),
        request("tools/call", 6, name="remember", arguments={"text": "x" * 600_000}),
        request("ping", 7),
        answers=9,
    )
    errors = [answer["error"]["code"] for answer in answers if answer["id"] is None]
    assert errors == [-32700, -32600, -32700]
    found = {answer["id"]: answer for answer in answers if answer["id"] is not None}
    assert sorted(found) == [2, 3, 4, 5, 6, 7]
    assert found[2]["error"]["code"] == -32601
    assert found[3]["error"]["code"] == -32602
    assert [found[number]["result"]["isError"] for number in (4, 5, 6)] == [True, True, True]
    assert found[7]["result"] == {}


@pytest.mark.parametrize(
    ("wanted", "spoken_version"),
    [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")],
)
async def test_the_version_of_a_client_is_used_if_it_is_known(wanted: str, spoken_version: str) -> None:
    (answer,) = await exchange("unix:nowhere", request("initialize", protocolVersion=wanted), answers=1)
    assert answer["result"]["protocolVersion"] == spoken_version


async def test_a_server_whose_agent_is_gone_ends_although_a_call_is_open(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        call = request("tools/call", name="remember", arguments={"text": "x"})
        assert await exchange(f"unix:{tmp_path}/silent", call) == []


@pytest.mark.parametrize("place", ["", "unix:", "127.0.0.1:80", "ftp://127.0.0.1:80/voice"])
async def test_an_invalid_address_of_agent_tools_is_refused_in_a_sentence(place: str) -> None:
    process = await asyncio.create_subprocess_exec(*relay_command(place), stderr=asyncio.subprocess.PIPE)
    _, words = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 1
    assert b"is not the address of agent tools" in words
    assert b"Traceback" not in words


async def test_a_result_is_reported_from_within_a_strict_sandbox(tool_host: ToolHost, tmp_path: Path) -> None:
    sandbox = Sandbox(profile=SandboxProfile.STRICT, writable=(tmp_path / "space",), model_socket=tool_host.socket)
    sandbox.writable[0].mkdir()
    program = await start_program(
        relay_command(f"{sandbox.url}/voice"),
        cwd=sandbox.writable[0],
        environment={"PATH": "/usr/bin:/bin"},
        errors=tmp_path / "errors",
        sandbox=sandbox,
    )
    try:
        program.write(request("tools/call", name="report_result", arguments=SUCCESS).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = json.loads(await anext(program.lines()))
    finally:
        await program.kill()
    assert not answer["result"]["isError"], answer
    assert read_result(tmp_path) == SUCCESS
