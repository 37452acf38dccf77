"""The messages of an ACP agent, tested with a program that sends the messages in its prompt."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.agents.acp.profile import CostSource
from kingdom.soldiers.agents.port import (
    AgentFailed,
    AgentGone,
    AgentMessage,
    BudgetSpent,
    CostUpdate,
    Prompt,
    ToolUse,
    TurnAnswer,
    UsageLimited,
)
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from tests.contract.agents.stage import A_WHILE, AT_ONCE, ENVIRONMENT, only, until_exists, updates_of
from tests.integration.soldiers.acp_scene import PLAIN, Scene, end, message_update, steps, take, tool, used
from tests.integration.soldiers.sources import processes_in
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    await scene.close()


async def test_a_session_opens_in_the_mode_of_the_profile_with_the_mcp_servers_of_the_launch(scene: Scene) -> None:
    servers = (
        McpServer(id="m1", name="shelf", transport=McpTransport.STDIO, command=("shelf", "-v"), env={"A": "b"}),
        McpServer(id="m2", name="web", transport=McpTransport.STREAMABLE_HTTP, url="http://127.0.0.1:1/mcp"),
        McpServer(id="m3", name="kingdom", transport=McpTransport.SSE, url="http://127.0.0.1:1/sse"),
    )
    agent = await scene.start(replace(PLAIN, session_mode="quiet"), mcp_servers=servers)
    assert [request["modeId"] for request in scene.requests("session/set_mode")] == ["quiet"]
    (opened,) = scene.requests("session/new")
    assert opened["cwd"] == str(scene.folder / "work space")
    shelf, web = opened["mcpServers"]
    assert (shelf["command"], shelf["args"], shelf["env"]) == ("shelf", ["-v"], [{"name": "A", "value": "b"}])
    assert (web["type"], web["url"]) == ("http", "http://127.0.0.1:1/mcp")
    assert scene.entries("session")[-1]["session"] == agent.session


async def test_the_answer_is_the_text_after_the_last_tool(scene: Scene) -> None:
    agent = await scene.start()
    reported = await take(
        agent,
        message_update("I be", "m1"),
        message_update("gin.", "m1"),
        tool("pending", title="bash"),
        tool("in_progress", title="make all", rawInput={"command": "make all", "cwd": "/"}),
        tool("completed", content=[{"type": "content", "content": {"type": "text", "text": "it is made"}}]),
        message_update("It is ", "m2"),
        message_update("done.", "m2"),
        end(),
    )
    assert [update for update in reported if not isinstance(update, CostUpdate)] == [
        *(
            AgentMessage("I be"),
            AgentMessage("gin."),
            ToolUse("bash", "make all"),
            AgentMessage("It is "),
            AgentMessage("done."),
        ),
        TurnAnswer("It is done.", 0.0),
    ]
    assert [entry["text"] for entry in scene.entries("said")] == ["I begin.", "It is done."]
    assert [entry["text"] for entry in scene.entries("output")] == ["it is made"]


async def test_a_tool_and_its_output_are_cut_without_the_beginning_of_a_secret(scene: Scene) -> None:
    secret, command, output = "sesame-of-the-door", "y" * 195, "x" * 1995
    agent = await scene.start(redaction=Redaction([secret]))
    await take(
        agent,
        tool("in_progress", title="run", rawInput={"command": command + secret}),
        tool("completed", content=[{"type": "content", "content": {"type": "text", "text": output + secret}}]),
        end(),
    )
    (used_tool,) = scene.entries("tool")
    assert used_tool["detail"].rpartition(" #")[0] == command + REDACTED
    assert [entry["text"] for entry in scene.entries("output")] == [output + REDACTED]


async def test_an_update_that_is_not_a_message_is_skipped(scene: Scene) -> None:
    agent = await scene.start()
    reported = await take(agent, {"line": "npm warn"}, {"line": "[1]"}, {"update": {"sessionUpdate": "unheard_of"}})
    assert reported[-1] == TurnAnswer("done", 0.0)


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["allow_always", "allow_once", "reject_once"], {"outcome": "selected", "optionId": "option-allow_once"}),
        (["allow_always"], {"outcome": "cancelled"}),
    ],
)
async def test_permission_is_given_for_one_use_and_never_for_all_uses(
    scene: Scene, kinds: list[str], outcome: dict[str, str]
) -> None:
    agent = await scene.start()
    reported = await take(agent, {"permission": kinds}, end())
    assert json.loads(reported[-1].text if isinstance(reported[-1], TurnAnswer) else "") == outcome
    assert only(reported, ToolUse) == ([ToolUse("execute", "make")] if "allow_once" in kinds else [])


async def test_a_request_with_half_a_surrogate_pair_is_answered(scene: Scene) -> None:
    agent = await scene.start()
    reported = await take(agent, {"permission": ["allow_once"], "command": "echo \ud83d!"}, end())
    assert isinstance(reported[-1], TurnAnswer)
    assert only(reported, ToolUse) == [ToolUse("execute", "echo ?!")]


async def test_a_message_after_the_failure_marker_of_the_profile_fails_the_turn(scene: Scene) -> None:
    profile = replace(PLAIN, has_notices=True, failure_marker=("agent", "state", "broken"))
    agent = await scene.start(profile)
    broken = {"update": {"sessionUpdate": "session_info_update", "_meta": {"agent": {"state": "broken"}}}}
    with pytest.raises(AgentFailed, match="the model is away"):
        await take(agent, message_update("half of it", "m1"), broken, message_update("the model is away\n\n"), end())
    reported = await take(agent, message_update("a warning"), message_update("fine", "m2"), end(), prompt_id="t2#1")
    assert only(reported, AgentMessage, TurnAnswer) == [AgentMessage("fine"), TurnAnswer("fine", 0.0)]


async def test_an_error_fails_the_turn_with_its_details(scene: Scene) -> None:
    agent = await scene.start()
    error = {"code": -32603, "message": "Internal error", "data": {"details": "the model said no"}}
    with pytest.raises(AgentFailed, match="Internal error: the model said no"):
        await take(agent, {"error": error})
    assert (await take(agent, prompt_id="t2#1"))[-1] == TurnAnswer("done", 0.0)


async def test_a_turn_that_the_agent_refuses_fails(scene: Scene) -> None:
    agent = await scene.start()
    with pytest.raises(AgentFailed, match="refusal"):
        await take(agent, message_update("no"), {"end": {"stopReason": "refusal"}})


async def test_a_limit_of_the_vendor_shows_its_end(scene: Scene) -> None:
    agent = await scene.start()
    message = "You've hit your usage limit. Try again in 2 hours."
    with pytest.raises(UsageLimited) as caught:
        await take(agent, {"error": {"code": -32603, "message": message}})
    assert scene.entries("failed")[-1]["until"]
    assert caught.value.reason == message


async def test_a_turn_costs_the_price_of_its_tokens(scene: Scene) -> None:
    agent = await scene.start()
    usage = {"totalTokens": 0, "inputTokens": 30_000, "cachedReadTokens": 10_000, "outputTokens": 1_000}
    reported = await take(agent, used(10_000), used(20_000), end(usage=usage))
    assert only(reported, CostUpdate) == [CostUpdate(0.1), CostUpdate(0.3), CostUpdate(0.31)]
    assert reported[-1] == TurnAnswer("", 0.31)
    assert scene.entries("answered")[-1]["cacheReadTokens"] == 10_000


async def test_used_tokens_cost_nothing_if_the_turn_ends_without_a_usage_report(scene: Scene) -> None:
    agent = await scene.start()
    assert (await take(agent, used(10_000), used(10_000), end()))[-1] == TurnAnswer("", 0.0)


async def test_a_model_without_a_known_price_is_charged_at_the_highest_price(scene: Scene) -> None:
    agent = await scene.start(model="unheard-of")
    usage = {"totalTokens": 0, "inputTokens": 1_000_000, "outputTokens": 0}
    assert (await take(agent, end(usage=usage)))[-1] == TurnAnswer("", 20.0)


async def test_the_cost_source_quota_reads_the_tokens_from_the_meta_field(scene: Scene) -> None:
    agent = await scene.start(replace(PLAIN, cost_source=CostSource.QUOTA))
    meta = {"quota": {"token_count": {"input_tokens": 10_000, "output_tokens": 1_000}}}
    assert (await take(agent, end(_meta=meta)))[-1] == TurnAnswer("", 0.2)


async def test_if_costs_are_counted_per_session_the_cost_of_a_killed_turn_is_in_the_next_turn(scene: Scene) -> None:
    profile = replace(PLAIN, cost_source=CostSource.SESSION)

    def spent(usd: float) -> dict[str, Any]:
        cost = {"amount": usd, "currency": "USD"}
        return {"update": {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": cost}}

    agent = await scene.start(profile)
    assert (await take(agent, spent(0.5), end()))[-1] == TurnAnswer("", 0.5)
    with pytest.raises(AgentGone):
        await take(agent, {"exit": 3}, prompt_id="t2#1")
    again = await scene.start(profile, agent.session)
    assert (await take(again, spent(1.25), end(), prompt_id="t3#1"))[-1] == TurnAnswer("", 0.75)


async def test_a_turn_that_spends_its_budget_is_cancelled(scene: Scene) -> None:
    agent = await scene.start()
    usage = {"totalTokens": 0, "inputTokens": 50_000, "outputTokens": 0}
    with pytest.raises(BudgetSpent) as caught:
        await take(agent, used(50_000), {"until_cancelled": 1, "with": {"usage": usage}}, budget_usd=0.4)
    assert caught.value.cost_usd == 0.5
    assert (await scene.stage(PLAIN).client.inspect(scene.stage(PLAIN).launch(), "t1#1")).cost_usd == 0.5


async def test_an_agent_that_ends_in_its_turn_is_gone_and_its_last_output_is_shown(scene: Scene) -> None:
    agent = await scene.start()
    with pytest.raises(AgentGone, match="exit code 3; its last output: I cannot go on"):
        await take(agent, {"exit": 3})
    assert scene.entries("failed", "ended")


async def test_an_agent_is_gone_if_its_adapter_reports_that_its_server_exited(scene: Scene) -> None:
    agent = await scene.start(replace(PLAIN, gone_error="server exited"))
    with pytest.raises(AgentGone, match="server exited"):
        await take(agent, {"error": {"code": -32603, "message": "the server exited with code 1"}})
    assert "SIGKILL" in await asyncio.wait_for(agent.wait_for_end(), PATIENCE_SECONDS)


async def test_a_stopped_agent_exits_by_itself_when_its_input_ends(scene: Scene) -> None:
    agent = await scene.start()
    await asyncio.wait_for(agent.stop(A_WHILE), PATIENCE_SECONDS)
    assert await agent.wait_for_end() == "exit code 0"


async def test_a_session_that_the_agent_has_lost_cannot_be_continued(scene: Scene) -> None:
    agent = await scene.start()
    await take(agent)
    await agent.stop(AT_ONCE)
    transcript = scene.folder / "soldier-1-1.json"
    transcript.write_text(transcript.read_text().replace(agent.session, "lost"))
    with pytest.raises(AgentGone, match="session lost of plain cannot be continued: Internal error: no such thread"):
        await scene.start(session="lost")


async def test_a_session_that_was_never_prompted_starts_over(scene: Scene) -> None:
    agent = await scene.start()
    await agent.stop(AT_ONCE)
    again = await scene.start(session=agent.session)
    assert again.session != agent.session
    assert (await take(again))[-1] == TurnAnswer("done", 0.0)


async def test_a_loaded_session_does_not_repeat_its_history(scene: Scene) -> None:
    profile = replace(PLAIN, loads_session=True)
    agent = await scene.start(profile)
    await take(agent)
    await agent.stop(AT_ONCE)
    again = await scene.start(profile, agent.session)
    assert again.session == agent.session
    assert await take(again, prompt_id="t2#1") == [AgentMessage("done"), TurnAnswer("done", 0.0)]


async def test_a_started_prompt_is_continued_and_an_unsent_one_is_sent_completely(scene: Scene) -> None:
    agent = await scene.start()
    with pytest.raises(AgentGone):
        await take(agent, {"exit": 3})
    silent = await scene.start(session=agent.session)
    with pytest.raises(AgentGone):
        await updates_of(silent, Prompt(id="t1#2", text="", continues=True))
    received = scene.requests("session/prompt")[-1]["prompt"][0]["text"]
    assert received.startswith("Continue what you were asked")
    assert steps({"exit": 3}) in received
    again = await scene.start(session=agent.session)
    with pytest.raises(AgentGone):
        await take(again, tool("in_progress", title="x"), {"exit": 3}, prompt_id="t2#1")
    last = await scene.start(session=agent.session)
    assert (await updates_of(last, Prompt(id="t2#2", text="", continues=True)))[-1] == TurnAnswer("done", 0.0)
    assert "exit" not in scene.requests("session/prompt")[-1]["prompt"][0]["text"]
    found = await scene.stage(PLAIN).client.inspect(scene.stage(PLAIN).launch(), "t2#1")
    assert found.finding is TranscriptFinding.UNFINISHED


async def test_the_files_of_a_profile_are_written_for_each_start(scene: Scene) -> None:
    files = {"deep/config": "model=$model url=$url at $input", "GUIDE.md": "$instructions"}
    profile = replace(PLAIN, files=files, environment={"AGENT_HOME": "$folder"})
    await scene.start(profile, instructions="Costs $5 and {more}.")
    folder = scene.home / ".kingdom-agents" / "plain-soldier-1-1"
    assert (folder / "deep" / "config").read_text() == "model=best url=http://127.0.0.1:1 at 10"
    assert (folder / "GUIDE.md").read_text() == "Costs $5 and {more}."


async def test_files_of_a_profile_are_not_written_through_a_link_of_an_agent(scene: Scene) -> None:
    elsewhere = scene.folder / "elsewhere"
    elsewhere.mkdir()
    (scene.home / ".kingdom-agents").symlink_to(elsewhere)
    with pytest.raises(ProgramFailed, match="could not be written"):
        await scene.start(replace(PLAIN, files={"config": "x"}))
    assert not list(elsewhere.iterdir())


async def test_a_session_is_moved_before_it_is_loaded(scene: Scene) -> None:
    profile = replace(PLAIN, loads_session=True, conflicting_files="chats/session-*-$session.jsonl")
    agent = await scene.start(profile)
    await take(agent)
    await agent.stop(AT_ONCE)
    chats = scene.home / ".kingdom-agents" / "plain-soldier-1-1" / "chats"
    chats.mkdir(parents=True)
    name = agent.session[:8]
    for minute, text in (("2000-01-01T00-00", "whole so far"), ("2026-01-01T00-01", "begun"), ("2026-01-02T00-01", "")):
        (chats / f"session-{minute}-{name}.jsonl").write_text(text)
    await scene.start(profile, agent.session)
    assert [file.read_text() for file in chats.iterdir()] == ["whole so far"]


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"program": "not-there"}, {}, "npm install --prefix DIRECTORY plain"),
        ({}, {"model": 'x"\nbase_url = "y'}, "not a valid model name"),
        ({}, {"environment": ENVIRONMENT}, "does not set HOME"),
    ],
)
async def test_a_missing_part_is_reported(
    scene: Scene, changes: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Misconfigured, match=words):
        await scene.start(replace(PLAIN, **changes), **options)


async def test_an_agent_that_does_not_start_is_gone(scene: Scene) -> None:
    with pytest.raises(AgentGone, match="plain failed to start: exit code"):
        await scene.start(replace(PLAIN, arguments=("-c", "import sys; sys.exit(4)")))


async def test_a_start_that_is_given_up_leaves_no_process(scene: Scene) -> None:
    silent = replace(PLAIN, arguments=("-c", "import pathlib, time; pathlib.Path('up').touch(); time.sleep(600)"))
    starting = asyncio.create_task(scene.start(silent))
    await until_exists(scene.folder / "work space" / "up")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert processes_in(scene.folder) == []
    assert not (scene.folder / "soldier-1-1.json").exists()
