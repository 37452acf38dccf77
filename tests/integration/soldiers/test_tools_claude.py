"""Real Claude Code that starts the agent's tools as an MCP server of its own, and uses them."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agent_tools.calls import TOOLS
from kingdom.soldiers.agent_tools.port import SERVER_NAME, AgentQuestion
from kingdom.soldiers.agent_tools.relay import relay_command
from kingdom.soldiers.processes.program import run_program
from kingdom.soldiers.turns.result import read_result
from kingdom.workflow.verdicts import PetitionVerdict
from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.integration.soldiers.tools_host import ToolHost, open_tool_host
from tests.patience import PATIENCE_SECONDS

TIMEOUT = timedelta(seconds=PATIENCE_SECONDS)
SUCCESS = {"status": "success", "summary": "all good"}


@pytest.fixture
async def tool_host(tmp_path: Path) -> AsyncIterator[ToolHost]:
    space = tmp_path / "space"
    space.mkdir()
    async with open_tool_host(
        space, tmp_path / "socket", verdict=PetitionVerdict(granted=False, reason="not today")
    ) as tool_host:
        yield tool_host


async def work(tmp_path: Path, tool_host: ToolHost, *steps: dict[str, Any]) -> ModelStub:
    """Let Claude Code follow a script. Return the model stub that it called."""
    sdk = pytest.importorskip("claude_agent_sdk")
    program, *words = relay_command(tool_host.url)
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {SERVER_NAME: {"type": "stdio", "command": program, "args": words}}}))
    home = tmp_path / "home"
    home.mkdir()
    async with ModelStub() as stub:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home),
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": stub.url,
            "ANTHROPIC_API_KEY": "sk-test-local",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
        }
        claude = Path(sdk.__file__).parent / "_bundled" / "claude"
        finished = await run_program(
            [
                *(str(claude), "-p", scripted(*steps), "--output-format", "stream-json", "--verbose"),
                *("--mcp-config", str(servers), "--strict-mcp-config", "--allowedTools", f"mcp__{SERVER_NAME}"),
            ],
            cwd=tmp_path / "space",
            environment=environment,
            timeout=TIMEOUT,
        )
    assert finished.code == 0, finished.output
    return stub


async def test_claude_code_reports_remembers_and_learns_why_a_petition_was_refused(
    tmp_path: Path, tool_host: ToolHost
) -> None:
    stub = await work(
        tmp_path,
        tool_host,
        {"petition": "github.comment", "body": {"body": "hi"}},
        {"remember": "Tests need a database."},
        {"result": {"status": "failed", "summary": "no"}},
        {"result": SUCCESS},
        {"answer": "done"},
    )
    assert read_result(tmp_path / "space") == {
        **SUCCESS,
        "memory_updates": [{"about": "patterns", "text": "Tests need a database."}],
    }
    assert tool_host.petitions == [("github.comment", {"body": "hi"})]
    conversation = json.dumps(stub.asked[-1].body)
    assert "not today" in conversation
    assert "error must not be empty" in conversation


async def test_claude_code_is_offered_every_tool_and_asks_a_person(tmp_path: Path, tool_host: ToolHost) -> None:
    stub = await work(tmp_path, tool_host, {"ask": "Which one?", "choices": ["a", "b"]}, {"answer": "I asked."})
    offered = {tool["name"]: tool for tool in stub.asked[0].body["tools"]}
    for tool in TOOLS:
        assert offered[f"mcp__{SERVER_NAME}__{tool.name}"]["input_schema"]["properties"] == tool.schema["properties"]
    assert tool_host.tools.end() == AgentQuestion(text="Which one?", choices=("a", "b"))
