"""Behavior of Claude Code that the contract tests of all agents do not cover."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.clock import utc_now
from kingdom.soldiers.agents.port import Prompt, ToolUse, TurnAnswer, TurnQuestion, UsageLimited
from kingdom.soldiers.agents.session_log import CONTINUE_PROMPT
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_entries
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from tests.contract.agents.clients import CLAUDE, MARKS
from tests.contract.agents.stage import A_WHILE, Stage, follow, open_stage, updates_of
from tests.fakes.model.stub import ServedRequest
from tests.integration.running import eventually
from tests.integration.soldiers.test_mcp_check import serving

pytestmark = MARKS["claude"]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage without a sandbox, where Claude Code may run as root."""
    async with open_stage(replace(CLAUDE, sandboxed=False), tmp_path) as stage:
        yield stage


def asked(stage: Stage) -> list[ServedRequest]:
    assert stage.model is not None
    return stage.model.asked


def noted(stage: Stage, prompt_id: str) -> list[TranscriptEntry]:
    return [entry for entry in read_entries(stage.transcript) if entry.get("prompt") == prompt_id]


def cut_the_end_of_the_turn(stage: Stage) -> None:
    """Cut our transcript as if the host was killed before it recorded the end of the last turn."""
    lines = stage.transcript.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"answered"' not in line and b'"ended"' not in line]
    stage.transcript.write_bytes(b"".join(kept))


async def test_an_agent_gets_the_environment_of_its_launch_and_not_that_of_the_host(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"run": "tr '\\0' '\\n' < /proc/$PPID/environ > env.txt"})
    lines = (stage.work_space / "env.txt").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if line)
    assert {name: found.get(name) for name in stage.environment} == dict(stage.environment)
    quiet = {name for name in found if name.startswith(("CLAUDE_CODE_DISABLE_", "DISABLE_"))}
    assert {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY"} < quiet
    assert set(found) - set(stage.environment) - quiet <= {"PWD", "IS_SANDBOX", "CLAUDE_CODE_EAGER_FLUSH"}


async def test_the_model_and_the_instructions_of_the_launch_reach_the_model(stage: Stage) -> None:
    (stage.work_space / "CLAUDE.md").write_text("Mind that the house colour is teal.")
    agent = await stage.start(model="claude-haiku-5-5", instructions="Remember the house rule: no Friday releases.")
    await follow(agent, {"answer": "understood"})
    body = asked(stage)[-1].body
    assert body["model"] == "claude-haiku-5-5"
    assert "no Friday releases" in str(body["system"])
    assert "the house colour is teal" in str(body)
    assert {
        f"mcp__kingdom__{tool}" for tool in ("report_result", "ask_human", "petition", "remember", "read_results")
    } <= {tool["name"] for tool in body["tools"]}


async def test_tools_of_remote_mcp_servers_can_be_called(stage: Stage) -> None:
    async with serving("http") as http, serving("sse") as sse:
        servers = (
            McpServer(id="m1", name="web", transport=McpTransport.STREAMABLE_HTTP, url=f"{http}/mcp"),
            McpServer(id="m2", name="stream", transport=McpTransport.SSE, url=f"{sse}/sse"),
        )
        agent = await stage.start(mcp_servers=servers)
        calls = [{"call": f"mcp__{name}__lend", "args": {"title": name}} for name in ("web", "stream")]
        assert (await follow(agent, *calls))[-1] == TurnAnswer("done", 0.0)
        await agent.stop(A_WHILE)
    body = str(asked(stage)[-1].body)
    assert "web is lent" in body
    assert "stream is lent" in body


async def test_a_prompt_reaches_the_model_unchanged(stage: Stage) -> None:
    (stage.work_space / "secret.txt").write_text("do not read this by yourself")
    agent = await stage.start()
    for number, text in enumerate(("/clear", "/model haiku", "see @secret.txt")):
        updates = await updates_of(agent, Prompt(id=f"t{number}#1", text=text))
        assert updates[-1] == TurnAnswer(f"I was asked: {text}", 0.0)
    assert "do not read this" not in str(asked(stage)[-1].body)


async def test_a_turn_is_in_the_transcript_with_its_tools_and_tokens(stage: Stage) -> None:
    agent = await stage.start()
    used: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 50}
    await follow(agent, {"say": "So."}, {"write": "a.txt"}, {"usage": used}, {"answer": "end"}, prompt_id="t1#1")
    entries = noted(stage, "t1#1")
    assert [entry["type"] for entry in entries] == ["prompt", "said", "tool", "output", "said", "spent", "answered"]
    assert (entries[2]["tool"], entries[2]["call"]) == ("Write", entries[3]["call"])
    assert not entries[3]["isError"]
    assert {name: entries[-1][name] for name in ("inputTokens", "outputTokens")} == {
        "inputTokens": 1000,
        "outputTokens": 50,
    }
    session = read_entries(stage.transcript)[0]
    assert (session["session"], session["model"], session["agent"]) == (agent.session, CLAUDE.model, "claude")


async def test_an_answer_that_our_transcript_lacks_is_found_in_the_session_file(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"write": "a.txt"}, {"cost": 0.25}, {"answer": "done before the end"}, prompt_id="t1#1")
    await agent.stop(A_WHILE)
    cut_the_end_of_the_turn(stage)
    found = await stage.client.inspect(stage.launch(agent.session), "t1#1")
    assert (found.finding, found.text, found.cost_usd) == (TranscriptFinding.ANSWERED, "done before the end", 0.25)
    again = await stage.start(agent.session)
    before = len(asked(stage))
    await follow(again, {"answer": "two"}, prompt_id="t2#1")
    assert len(asked(stage)) == before + 1


async def test_a_session_file_that_is_a_link_is_not_read(stage: Stage, tmp_path: Path) -> None:
    agent = await stage.start()
    await follow(agent, {"answer": "mine"}, prompt_id="t1#1")
    await agent.stop(A_WHILE)
    cut_the_end_of_the_turn(stage)
    (own,) = Path(stage.environment["HOME"]).glob(f".claude/projects/*/{agent.session}.jsonl")
    own.rename(tmp_path / "elsewhere.jsonl")
    own.symlink_to(tmp_path / "elsewhere.jsonl")
    assert (await stage.client.inspect(stage.launch(agent.session), "t1#1")).finding is TranscriptFinding.UNFINISHED


async def test_a_session_that_was_never_prompted_continues_under_its_id(stage: Stage) -> None:
    agent = await stage.start()
    await agent.stop(A_WHILE)
    again = await stage.start(agent.session)
    assert again.session == agent.session
    assert (await follow(again, {"answer": "first"}))[-1] == TurnAnswer("first", 0.0)


async def test_a_question_is_asked_again_without_a_request_to_the_model(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"ask": "Which?", "choices": ["x"]}, {"answer": "so {reply}"}, prompt_id="t1#1")
    before = len(asked(stage))
    again = await stage.start(agent.session)
    updates = await updates_of(again, Prompt(id="t1#2", text="the query", continues=True))
    assert (updates, len(asked(stage))) == ([TurnQuestion("Which?", ("x",), 0.0)], before)
    updates = await updates_of(again, Prompt(id="t1#3", text="the query", reply="x"))
    assert updates[-1] == TurnAnswer("so x", 0.0)


async def test_a_continued_agent_gets_the_continue_prompt_and_its_additions(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"run": "sleep 60", "first_time_only": True}, prompt_id="t1#1"))

    async def model_asked() -> bool:
        return bool(asked(stage))

    await eventually(model_asked)
    await agent.interrupt()
    await asyncio.wait([turn])
    await updates_of(agent, Prompt(id="t1#1", text="Do not sleep so much.", continues=True))
    last = [message for message in asked(stage)[-1].body["messages"] if message["role"] == "user"][-1]
    assert CONTINUE_PROMPT in str(last)
    assert "Do not sleep so much." in str(last)
    assert "interrupted" in str(turn.exception())


async def test_calls_of_a_tool_with_different_inputs_have_different_details(stage: Stage) -> None:
    agent = await stage.start()
    long = "true " * 60
    writes = ({"write": "a.txt", "text": text} for text in ("one", "two", "two"))
    updates = await follow(agent, *writes, {"run": f"{long}1"}, {"run": f"{long}2"}, {"run": "true"})
    details = [update.detail for update in updates if isinstance(update, ToolUse)]
    assert [detail.partition(" ")[0] for detail in details] == ["a.txt"] * 3 + ["true"] * 3
    assert len(set(details)) == 5
    assert max(map(len, details)) < 250


async def test_the_limit_of_a_subscription_shows_its_end_to_the_second(stage: Stage) -> None:
    subscribed = {**stage.environment, "ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "none"}
    agent = await stage.start(environment=subscribed)
    until = utc_now().replace(microsecond=0) + timedelta(hours=2)
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
        "anthropic-ratelimit-unified-reset": str(int(until.timestamp())),
    }
    with pytest.raises(UsageLimited, match="limit") as caught:
        await follow(agent, {"model_error": 429, "headers": headers}, prompt_id="t1#1")
    assert caught.value.until == until
    (failed,) = [entry for entry in noted(stage, "t1#1") if entry["type"] == "failed"]
    assert datetime.fromisoformat(failed["until"]) == until
