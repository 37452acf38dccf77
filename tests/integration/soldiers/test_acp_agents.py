"""Real agents of several vendors in the sandbox, with only the model proxy to reach their model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agent_tools.relay import answer_tool_call
from kingdom.soldiers.agents.acp.client import AcpAgentClient
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.acp.profiles import PROFILES
from kingdom.soldiers.agents.port import AgentFailed, AgentGone, BudgetSpent, Prompt, ToolUse, TurnAnswer
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from tests.contract.agents.acp_clients import AGENTS, MODEL, PRICES, marks
from tests.contract.agents.clients import Kind
from tests.contract.agents.stage import A_WHILE, AT_ONCE, ENVIRONMENT, Stage, follow, only, until_exists, updates_of
from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.integration.soldiers import mcp_server
from tests.integration.soldiers.processes import MARK, until_none

KEY = "the-key-that-no-agent-sees"
SHELF = {"codex": "mcp__shelf/lend", "gemini": "mcp_shelf_lend", "opencode": "shelf_lend"}


class AgentSetup:
    """The environment of an agent, with a proxy in front of its model."""

    def __init__(self, profile: AcpProfile, stage: Stage, model: ModelStub, tools: HostTools) -> None:
        self.profile = profile
        self.stage = stage
        self.model = model
        self.tools = tools


async def _no_verdict(_: str) -> None:
    return None


@asynccontextmanager
async def opened(profile: AcpProfile, folder: Path, confinement: SandboxProfile) -> AsyncIterator[AgentSetup]:
    """Provide the environment of an agent under a sandbox profile; end all processes afterwards."""
    home, space, mark = folder / "home", folder / "work space", uuid4().hex
    (home / "tmp").mkdir(parents=True)
    space.mkdir()
    tools = HostTools(space, _no_verdict)
    on_loopback = confinement is SandboxProfile.OFF
    async with ModelStub() as model:
        upstream = Upstream(vendor=profile.vendor, url=model.url, key=KEY)
        handler = partial(answer_tool_call, tools)
        async with ModelProxy(folder / "gate", [upstream], on_tool_call=handler, on_loopback=on_loopback) as proxy:
            sandbox = Sandbox(
                profile=confinement, writable=(space, home), model_socket=proxy.socket, limits=AGENT_LIMITS
            )
            sandbox = replace(sandbox, url=proxy.url) if on_loopback else sandbox
            environment = {**ENVIRONMENT, MARK: mark, "HOME": str(home), "TMPDIR": str(home / "tmp")}
            client = AcpAgentClient(profile, directory=AGENTS, prices=PRICES)
            kind = Kind(make=lambda: client, model=MODEL)
            stage = Stage(client, folder, environment, kind=kind, sandbox=sandbox)
            try:
                yield AgentSetup(profile, stage, model, tools)
            finally:
                await stage.close()
    await until_none(mark)


EVERY = [pytest.param(profile, id=name, marks=marks(name)) for name, profile in PROFILES.items()]


@pytest.fixture(params=EVERY)
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentSetup]:
    async with opened(request.param, tmp_path, SandboxProfile.STRICT) as setup:
        yield setup


@pytest.mark.parametrize("profile", EVERY)
async def test_an_agent_without_a_sandbox_uses_the_proxy_too(profile: AcpProfile, tmp_path: Path) -> None:
    async with opened(profile, tmp_path, SandboxProfile.OFF) as setup:
        agent = await setup.stage.start(tools=setup.tools)
        result = {"status": "success", "summary": "it is done"}
        assert (await follow(agent, {"result": result}, {"answer": "well"}))[-1] == TurnAnswer("well", 0.0)
        assert (setup.stage.work_space / "result.json").exists()


async def test_an_agent_works_in_the_sandbox_and_never_sees_the_key(setup: AgentSetup) -> None:
    stage = setup.stage
    agent = await stage.start(tools=setup.tools, instructions="Always count the sheep.")
    updates = await follow(
        agent,
        {"write": "a.txt", "text": "a"},
        {"run": "env > env.txt; id -u > uid.txt"},
        {"result": {"status": "success", "summary": "a is written"}},
        {"cost": 0.25},
        {"answer": "all is well"},
    )
    assert updates[-1] == TurnAnswer("all is well", 0.25)
    assert (stage.work_space / "a.txt").read_text() == "a"
    assert (stage.work_space / "uid.txt").read_text() == "1000\n"
    assert json.loads((stage.work_space / "result.json").read_text())["summary"] == "a is written"
    assert KEY not in (stage.work_space / "env.txt").read_text()
    asked = setup.model.asked
    assert asked
    assert all(KEY in " ".join(served.headers.values()) for served in asked)
    assert any("Always count the sheep." in json.dumps(served.body) for served in asked)
    await agent.stop(A_WHILE)


async def test_an_mcp_server_of_the_work_is_called(setup: AgentSetup) -> None:
    shelf = McpServer(
        id="m1",
        name="shelf",
        transport=McpTransport.STDIO,
        command=(sys.executable, str(setup.stage.work_space / "shelf.py"), "stdio"),
    )
    source = Path(mcp_server.__file__).read_text(encoding="utf-8")
    (setup.stage.work_space / "shelf.py").write_text(source, encoding="utf-8")
    agent = await setup.stage.start(mcp_servers=(shelf,))
    updates = await follow(agent, {"call": SHELF[setup.profile.name], "args": {"title": "Emma"}}, {"answer": "lent"})
    assert updates[-1] == TurnAnswer("lent", 0.0)
    assert len(only(updates, ToolUse)) == 1
    assert "Emma is lent" in json.dumps(setup.model.asked[-1].body)


async def test_a_turn_that_spends_its_budget_is_stopped_before_it_continues(setup: AgentSetup) -> None:
    if setup.profile.name != "codex":
        pytest.skip(f"{setup.profile.name} reports the cost of a turn only at its end")
    agent = await setup.stage.start()
    with pytest.raises(BudgetSpent) as caught:
        await follow(agent, {"cost": 0.5}, {"write": "a.txt"}, {"hang": True}, budget_usd=0.3)
    assert caught.value.cost_usd == 0.5
    assert (await follow(agent, {"answer": "more"}, prompt_id="t2#1"))[-1] == TurnAnswer("more", 0.0)


async def test_a_session_continues_the_step_at_which_it_was_killed(setup: AgentSetup) -> None:
    stage = setup.stage
    agent = await stage.start()
    assert (await follow(agent, {"answer": "first"}, prompt_id="t1#1"))[-1] == TurnAnswer("first", 0.0)
    steps = ({"write": "began"}, {"wait_for": "go"}, {"append": "log", "text": "b"}, {"answer": "second"})
    turn = asyncio.create_task(follow(agent, {"append": "log", "text": "a"}, *steps, prompt_id="t2#1"))
    await until_exists(stage.work_space / "began")
    await agent.stop(AT_ONCE)
    with pytest.raises(AgentGone):
        await turn
    (stage.work_space / "go").touch()
    for attempt in (2, 3):
        again = await stage.start(agent.session)
        assert again.session == agent.session
        updates = await updates_of(
            again, Prompt(id=f"t2#{attempt}", text=scripted({"answer": "second"}), continues=True)
        )
        assert only(updates, TurnAnswer) == [TurnAnswer("second", 0.0)]
        await again.stop(AT_ONCE)
    assert (stage.work_space / "log").read_text() == "ab"


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_an_error_of_the_model_fails_the_turn_and_not_the_agent(setup: AgentSetup, status: int) -> None:
    agent = await setup.stage.start()
    with pytest.raises(AgentFailed):
        await follow(agent, {"model_error": status, "times": 20}, prompt_id="t1#1")
    assert (await follow(agent, {"answer": "again"}, prompt_id="t2#1"))[-1] == TurnAnswer("again", 0.0)
    entries = read_entries(setup.stage.transcript)
    assert [entry["type"] for entry in entries if entry["type"] in ("failed", "answered")] == ["failed", "answered"]


async def test_a_model_that_falls_silent_fails_the_turn(setup: AgentSetup) -> None:
    if setup.profile.name != "codex":
        pytest.skip(f"{setup.profile.name} asks a silent model again for longer than a test can wait")
    changes = {"stream_idle_timeout_ms = 300000": "stream_idle_timeout_ms = 5000", "max_retries = 4": "max_retries = 1"}
    text = setup.profile.files["config.toml"]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    files = {**setup.profile.files, "config.toml": text}
    setup.stage.client = AcpAgentClient(replace(setup.profile, files=files), directory=AGENTS, prices=PRICES)
    agent = await setup.stage.start()
    with pytest.raises(AgentFailed, match="idle timeout"):
        await follow(agent, {"say": "I think"}, {"hang": True}, prompt_id="t1#1")
    assert (await follow(agent, {"answer": "again"}, prompt_id="t2#1"))[-1] == TurnAnswer("again", 0.0)


@pytest.mark.parametrize("step", [{"model_error": 500}, {"model_error": 529}, {"drop_stream": True}])
async def test_a_temporary_error_of_the_model_does_not_fail_the_turn(
    setup: AgentSetup, step: dict[str, object]
) -> None:
    if setup.profile.name == "gemini" and "drop_stream" in step:
        pytest.skip("gemini does not ask again when a stream breaks off: the turn fails")
    agent = await setup.stage.start()
    updates = await follow(agent, {**step, "times": 1}, {"answer": "survived"})
    assert updates[-1] == TurnAnswer("survived", 0.0)
