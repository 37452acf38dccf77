"""Agents that are processes: they are killed with their children or with their host, and continued later."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agents.port import Agent, AgentFailed, AgentGone, Prompt, TurnAnswer
from kingdom.workflow.model.messages.answers import TranscriptFinding
from tests.contract.agents.stage import A_WHILE, AT_ONCE, Stage, follow, updates_of
from tests.integration.processes import child
from tests.integration.soldiers.processes import cancel_while_it_starts, marked, until_none, until_runs
from tests.patience import PATIENCE_SECONDS

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
# A daemon in its own session, and a command that hangs.
TOOL = "setsid sleep 912 & sleep 913"


@pytest.fixture
def contained_stage(process_stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """A stage on which everything that an agent has started ends with it."""
    if "not contained" in request.node.name:
        pytest.skip("an agent without its own namespace leaves its daemons behind")
    return process_stage


async def hang_in_a_tool(agent: Agent, stage: Stage) -> asyncio.Task[list[Any]]:
    """Let an agent do a step and then hang in a tool."""
    steps = ({"append": "log", "text": "a"}, {"run": TOOL, "first_time_only": True}, {"append": "log", "text": "b"})
    turn = asyncio.create_task(follow(agent, *steps, prompt_id="t1#1"))
    await until_runs(stage.mark, "sleep 912")
    await until_runs(stage.mark, "sleep 913")
    assert (stage.work_space / "log").read_text() == "a"
    return turn


async def continue_session(stage: Stage, session: str) -> None:
    """Let a new agent finish the work of a killed one without repeating finished steps."""
    assert (await stage.client.inspect(stage.launch(session), "t1#1")).finding is TranscriptFinding.UNFINISHED
    again = await stage.start(session)
    assert again.session == session
    updates = await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    assert updates[-1] == TurnAnswer("done", 0.0)
    assert (stage.work_space / "log").read_text() == "ab"
    assert (await stage.client.inspect(stage.launch(session), "t1#2")).finding is TranscriptFinding.ANSWERED
    assert (await follow(again, {"answer": "next"}, prompt_id="t2#1"))[-1] == TurnAnswer("next", 0.0)


@needs_bubblewrap
async def test_an_agent_that_is_stopped_in_a_tool_leaves_no_process(contained_stage: Stage) -> None:
    agent = await contained_stage.start()
    turn = await hang_in_a_tool(agent, contained_stage)
    await agent.stop(AT_ONCE)
    assert marked(contained_stage.mark) == []
    with pytest.raises(AgentGone, match="SIGKILL"):
        await turn


@needs_bubblewrap
async def test_a_daemon_that_a_tool_has_left_ends_with_its_agent(contained_stage: Stage) -> None:
    agent = await contained_stage.start()
    await follow(agent, {"run": "setsid sleep 912 >/dev/null 2>&1 </dev/null &"})
    await agent.stop(A_WHILE)
    assert marked(contained_stage.mark) == []


@needs_bubblewrap
async def test_an_agent_killed_in_a_tool_leaves_no_process_and_its_session_continues(contained_stage: Stage) -> None:
    agent = await contained_stage.start()
    turn = await hang_in_a_tool(agent, contained_stage)
    assert agent.pid is not None
    os.kill(agent.pid, signal.SIGKILL)
    assert "SIGKILL" in await asyncio.wait_for(agent.wait_for_end(), PATIENCE_SECONDS)
    assert marked(contained_stage.mark) == []
    with pytest.raises(AgentGone, match="SIGKILL"):
        await turn
    await continue_session(contained_stage, agent.session)


@needs_bubblewrap
async def test_a_session_continues_after_its_host_was_killed(
    contained_stage: Stage, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind = request.node.callspec.params["stage"]
    options = {"kind": kind, "folder": str(tmp_path), "mark": contained_stage.mark, "url": contained_stage.url}
    async with child("contract.agents.host_child", **options) as host:
        host.signal(signal.SIGKILL)
        await host.ends()
    await until_none(contained_stage.mark)
    await continue_session(contained_stage, host.lines[0])


async def test_an_interrupt_in_a_tool_ends_the_tool(process_stage: Stage) -> None:
    agent = await process_stage.start()
    turn = asyncio.create_task(follow(agent, {"run": "sleep 914"}, prompt_id="t1#1"))
    await until_runs(process_stage.mark, "sleep 914")
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)
    assert (await follow(agent, prompt_id="t2#1"))[-1] == TurnAnswer("done", 0.0)
    assert "sleep 914" not in marked(process_stage.mark)


async def test_a_cancelled_start_leaves_no_process(process_stage: Stage) -> None:
    await cancel_while_it_starts(process_stage.client.start(process_stage.launch()), process_stage.mark, "")
    assert marked(process_stage.mark) == []
