"""The command line and the environment of Claude Code."""

import json
import os
from pathlib import Path

from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agents.claude.command import build_arguments, build_environment, mcp_server_configs
from kingdom.soldiers.agents.port import Launch
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport

STDIO = McpServer(
    id="m1", name="shelf", transport=McpTransport.STDIO, command=("shelf", "--all"), env={"KEY": "secret"}
)
SSE = McpServer(id="m2", name="stream", transport=McpTransport.SSE, url="http://127.0.0.1:1/sse")
HTTP = McpServer(id="m3", name="web", transport=McpTransport.STREAMABLE_HTTP, url="http://127.0.0.1:1/mcp")


def launch(**options: object) -> Launch:
    given: dict[str, object] = {
        "soldier_id": "soldier-1-1",
        "work_space": Path("space"),
        "model": "opus",
        "session": None,
        "transcript": Path("t.json"),
        "errors": Path("t.err"),
        "environment": {"HOME": "/home/agent"},
        "mcp_servers": (STDIO, SSE, HTTP),
        **options,
    }
    return Launch(**given)  # type: ignore[arg-type]  # the values differ in type


async def no_verdict(_: str) -> None:
    return None


def test_arguments_name_the_session_the_model_and_the_instructions() -> None:
    new = build_arguments(launch(instructions="Be brief."), "s1", resumes=False)
    assert {"--session-id=s1", "--model=opus", "--append-system-prompt=Be brief."} < set(new)
    assert "--resume=s1" in build_arguments(launch(), "s1", resumes=True)
    assert not any("model" in word for word in build_arguments(launch(model=""), "s1", resumes=False))


def test_secrets_of_mcp_servers_are_not_among_the_arguments() -> None:
    assert "secret" not in str(build_arguments(launch(), "s1", resumes=False))


def test_mcp_servers_of_every_transport_are_configured_but_none_under_our_own_name() -> None:
    impostor = McpServer(id="m4", name="kingdom", transport=McpTransport.SSE, url="http://127.0.0.1:1/sse")
    assert mcp_server_configs(launch(mcp_servers=(STDIO, SSE, HTTP, impostor))) == {
        "shelf": {"type": "stdio", "command": "shelf", "args": ["--all"], "env": {"KEY": "secret"}},
        "stream": {"type": "sse", "url": "http://127.0.0.1:1/sse"},
        "web": {"type": "http", "url": "http://127.0.0.1:1/mcp"},
    }


def test_an_agent_with_tools_gets_the_server_of_kingdom() -> None:
    answer_envelope = build_arguments(launch(tools=HostTools(Path("space"), no_verdict)), "s1", resumes=False)
    (configuration,) = [word.partition("=")[2] for word in answer_envelope if word.startswith("--mcp-config=")]
    assert json.loads(configuration)["mcpServers"]["kingdom"]["type"] == "sdk"
    assert not any(word.startswith("--mcp-config") for word in build_arguments(launch(), "s1", resumes=False))


def test_variables_of_the_launch_override_the_defaults() -> None:
    chosen = {"HOME": "/home/agent", "DISABLE_TELEMETRY": "0"}
    found = build_environment(launch(environment=chosen))
    assert {name: found[name] for name in chosen} == chosen
    assert found["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"


def test_is_sandbox_is_set_only_for_root_without_a_sandbox() -> None:
    strict = Sandbox(profile=SandboxProfile.STRICT)
    assert "IS_SANDBOX" not in build_environment(launch(sandbox=strict))
    for open_launch in (launch(), launch(sandbox=Sandbox(profile=SandboxProfile.OFF))):
        assert ("IS_SANDBOX" in build_environment(open_launch)) == (os.geteuid() == 0)
