"""Agents that call a model: errors, prices and limits of the model, and tools."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agents.port import AgentFailed, AgentGone, BudgetSpent, ToolUse, TurnAnswer, UsageLimited
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from tests.contract.agents.clients import CostTiming
from tests.contract.agents.stage import Stage, follow

MCP_SERVER = Path(__file__).parents[2] / "integration" / "soldiers" / "mcp_server.py"
SHELF = McpServer(
    id="mcp-1", name="shelf", transport=McpTransport.STDIO, command=(sys.executable, str(MCP_SERVER), "stdio")
)


async def test_errors_of_the_model_fail_the_turn_and_the_agent_keeps_running(model_stage: Stage) -> None:
    agent = await model_stage.start()
    for number, (status, words) in enumerate(model_stage.kind.errors.items()):
        with pytest.raises(AgentFailed, match=words):
            await follow(agent, {"write": f"{status}.txt"}, {"model_error": status}, prompt_id=f"t{number}#1")
        assert (model_stage.work_space / f"{status}.txt").exists()
    assert (await follow(agent, {"answer": "well again"}, prompt_id="t9#1"))[-1] == TurnAnswer("well again", 0.0)


async def test_an_agent_retries_after_a_temporary_error_of_the_model(model_stage: Stage) -> None:
    agent = await model_stage.start()
    passing = ({"model_error": 529, "times": 1}, {"append": "log", "text": "a"}, {"drop_stream": True, "times": 1})
    updates = await follow(agent, *passing)
    assert updates[-1] == TurnAnswer("done", 0.0)
    assert (model_stage.work_space / "log").read_text() == "a"


async def test_a_model_that_does_not_answer_fails_the_turn(model_stage: Stage) -> None:
    if not model_stage.kind.impatient:
        pytest.skip(f"no variable makes agents of the client {model_stage.client.name} impatient")
    agent = await model_stage.start(environment={**model_stage.environment, **model_stage.kind.impatient})
    with pytest.raises(AgentFailed, match=r"(?i)time"):
        await follow(agent, {"delay": 600}, prompt_id="t1#1")


async def test_a_usage_limit_shows_when_the_session_can_continue(model_stage: Stage) -> None:
    agent = await model_stage.start()
    later = (datetime.now(UTC) + timedelta(days=3)).replace(hour=0, minute=0, second=0, microsecond=0)
    limit = {"model_error": 400, "message": model_stage.kind.limit.format(date=later.date()), "times": 1}
    with pytest.raises(UsageLimited) as caught:
        await follow(agent, {"cost": 0.25}, {"append": "log", "text": "a"}, limit, {"answer": "late"}, prompt_id="t1#1")
    assert (caught.value.until, caught.value.cost_usd) == (later, 0.25)
    updates = await follow(agent, {"answer": "late"}, prompt_id="t1#2", continues=True)
    assert updates[-1] == TurnAnswer("late", 0.0)
    assert (model_stage.work_space / "log").read_text() == "a"


async def test_a_turn_that_has_cost_its_budget_ends_before_the_next_tool_and_can_continue(model_stage: Stage) -> None:
    if model_stage.kind.cost_timing is not CostTiming.AT_ONCE:
        pytest.skip(f"agents of the client {model_stage.client.name} tell the cost only after the next tool")
    agent = await model_stage.start()
    steps: list[dict[str, Any]] = [{"cost": 0.25}, {"write": "one"}, {"cost": 0.25}, {"write": "two"}]
    with pytest.raises(BudgetSpent) as caught:
        await follow(agent, *steps, prompt_id="t1#1", budget_usd=0.5)
    assert caught.value.cost_usd == 0.5
    assert [file.name for file in model_stage.work_space.iterdir()] == ["one"]
    assert (await follow(agent, *steps, prompt_id="t1#2", continues=True, budget_usd=1.0))[-1] == TurnAnswer(
        "done", 0.25
    )
    assert (model_stage.work_space / "two").exists()


async def test_each_turn_reports_only_its_own_cost_also_after_the_session_was_resumed(model_stage: Stage) -> None:
    agent = await model_stage.start()
    assert (await follow(agent, {"cost": 0.5}, prompt_id="t1#1"))[-1] == TurnAnswer("done", 0.5)
    with pytest.raises(AgentGone) as caught:
        await follow(agent, {"cost": 0.25}, {"crash": 1}, prompt_id="t2#1")
    assert caught.value.cost_usd == (0.25 if model_stage.kind.cost_timing is CostTiming.AT_ONCE else 0.0)
    again = await model_stage.start(agent.session)
    assert (await follow(again, {"cost": 0.125}, prompt_id="t3#1"))[-1] == TurnAnswer("done", 0.125)


async def test_a_tool_of_an_mcp_server_is_called(model_stage: Stage) -> None:
    agent = await model_stage.start(mcp_servers=(SHELF,))
    tool = model_stage.kind.mcp_tool.format(server="shelf", tool="lend")
    updates = await follow(agent, {"call": tool, "args": {"title": "Emma"}}, {"answer": "read"})
    assert [update.tool for update in updates if isinstance(update, ToolUse)] == [tool]
    assert updates[-1] == TurnAnswer("read", 0.0)
    assert model_stage.model is not None
    assert "Emma is lent" in str(model_stage.model.asked[-1].body)


async def test_an_agent_without_one_of_its_mcp_servers_does_not_start(model_stage: Stage) -> None:
    if not model_stage.kind.checks_mcp_servers:
        pytest.skip(f"agents of the client {model_stage.client.name} work without the servers that fail")
    nowhere = McpServer(
        id="mcp-1", name="nowhere", transport=McpTransport.STREAMABLE_HTTP, url="http://127.0.0.1:9/mcp"
    )
    with pytest.raises(AgentGone, match="nowhere"):
        await model_stage.start(mcp_servers=(nowhere,))
