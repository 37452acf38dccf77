"""What every AgentClient guarantees: turns, sessions that continue, and correct inspection of both."""

import asyncio

import pytest

from kingdom.soldiers.agents.port import (
    AgentFailed,
    AgentGone,
    AgentMessage,
    CostUpdate,
    Inspection,
    PetitionRequest,
    Prompt,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
)
from kingdom.workflow.model.messages.answers import TranscriptFinding
from tests.contract.agents.clients import CostTiming
from tests.contract.agents.stage import Stage, follow, only, until_exists, updates_of
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS


async def test_a_turn_shows_its_progress_and_ends_with_one_answer(stage: Stage) -> None:
    agent = await stage.start()
    updates = await follow(
        agent,
        {"say": "I begin."},
        {"write": "a.txt", "text": "a"},
        {"petition": "github.comment", "body": {"text": "fine"}},
        {"cost": 0.25},
        {"answer": "all is well"},
    )
    used = next(update for update in updates if isinstance(update, ToolUse))
    awaited = [
        AgentMessage("I begin."),
        used,
        PetitionRequest("github.comment", {"text": "fine"}),
        CostUpdate(0.25),
        TurnAnswer("all is well", 0.25),
    ]
    found = [update for update in updates if update in awaited]
    assert found == awaited if stage.kind.in_order else sorted(found, key=repr) == sorted(awaited, key=repr)
    assert (used.tool, used.detail.partition(" ")[0]) == (stage.kind.write_tool, stage.kind.written)
    assert updates[-1] == awaited[-1]
    assert len(only(updates, TurnAnswer)) == 1
    assert (stage.work_space / "a.txt").read_text() == "a"


async def test_one_agent_takes_prompt_after_prompt_in_one_session(stage: Stage) -> None:
    agent = await stage.start()
    first = await follow(agent, {"cost": 1.0}, {"answer": "one"}, prompt_id="t1#1")
    second = await follow(agent, {"cost": 0.5}, {"append": "log", "text": "2"}, {"answer": "two"}, prompt_id="t2#1")
    third = await follow(agent, {"append": "log", "text": "3"}, {"answer": "three"}, prompt_id="t3#1")
    assert (first[-1], second[-1], third[-1]) == (
        TurnAnswer("one", 1.0),
        TurnAnswer("two", 0.5),
        TurnAnswer("three", 0.0),
    )
    assert (stage.work_space / "log").read_text() == "23"


async def test_the_cost_of_a_turn_adds_up(stage: Stage) -> None:
    agent = await stage.start()
    updates = await follow(agent, {"cost": 0.1}, {"write": "a.txt"}, {"cost": 0.2})
    spent = (
        [CostUpdate(0.3)] if stage.kind.cost_timing is CostTiming.AFTER_THE_TURN else [CostUpdate(0.1), CostUpdate(0.3)]
    )
    assert only(updates, CostUpdate, TurnAnswer) == [*spent, TurnAnswer("done", 0.3)]


async def test_a_failed_turn_reports_its_reason_and_cost_and_the_agent_keeps_running(stage: Stage) -> None:
    agent = await stage.start()
    with pytest.raises(AgentFailed, match="no access") as caught:
        await follow(agent, {"cost": 0.5}, {"fail": "no access"}, prompt_id="t1#1")
    assert caught.value.cost_usd == 0.5
    assert (await follow(agent, prompt_id="t1#2"))[-1] == TurnAnswer("done", 0.0)


async def test_a_second_prompt_at_once_is_refused_and_does_not_disturb_the_first(stage: Stage) -> None:
    agent = await stage.start()
    first = asyncio.create_task(follow(agent, {"write": "began"}, {"wait_for": "go"}, prompt_id="t1#1"))
    await until_exists(stage.work_space / "began")
    with pytest.raises(AgentFailed, match=r"t2#1 .* busy with t1#1"):
        await follow(agent, prompt_id="t2#1")
    (stage.work_space / "go").touch()
    assert (await first)[-1] == TurnAnswer("done", 0.0)


async def test_a_question_ends_the_turn_and_the_reply_lets_the_script_continue(stage: Stage) -> None:
    agent = await stage.start()
    steps = ({"append": "log", "text": "a"}, {"ask": "Which?", "choices": ["x", "y"]}, {"answer": "so {reply}"})
    updates = await follow(agent, {"cost": 1.0}, *steps, prompt_id="t1#1")
    assert updates[-1] == TurnQuestion("Which?", ("x", "y"), 1.0)
    updates = await updates_of(agent, Prompt(id="t1#2", text="The reply", reply="y"))
    assert only(updates, TurnAnswer, TurnQuestion) == [TurnAnswer("so y", 0.0)]
    assert (stage.work_space / "log").read_text() == "a"


async def test_a_question_without_a_reply_is_asked_again(stage: Stage) -> None:
    agent = await stage.start()
    await follow(agent, {"ask": "Which?"}, prompt_id="t1#1")
    updates = await updates_of(agent, Prompt(id="t1#2", text="go on", continues=True))
    assert updates == [TurnQuestion("Which?", (), 0.0)]


async def test_an_interrupt_ends_the_turn_and_the_agent_takes_the_next_prompt(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"cost": 0.5}, {"write": "began"}, {"hang": True}, prompt_id="t1#1"))
    await until_exists(stage.work_space / "began")
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted") as caught:
        await asyncio.wait_for(turn, PATIENCE_SECONDS)
    assert caught.value.cost_usd == 0.5
    assert (await follow(agent, prompt_id="t2#1"))[-1] == TurnAnswer("done", 0.0)


async def test_an_interrupt_before_the_turn_has_begun_is_not_lost(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"hang": True}))
    await asyncio.sleep(0)
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)


async def test_an_interrupt_without_a_turn_changes_nothing(stage: Stage) -> None:
    agent = await stage.start()
    await agent.interrupt()
    assert (await follow(agent))[-1] == TurnAnswer("done", 0.0)


async def test_closing_the_updates_interrupts_the_turn(stage: Stage) -> None:
    agent = await stage.start()
    updates = agent.send(Prompt(id="t1#1", text=scripted({"say": "hello"}, {"hang": True})))
    assert await anext(updates) == AgentMessage("hello")
    await updates.aclose()
    assert (await follow(agent, {"answer": "next"}, prompt_id="t2#1"))[-1] == TurnAnswer("next", 0.0)


async def test_a_crashed_agent_makes_send_raise_and_its_end_shows_the_code(stage: Stage) -> None:
    agent = await stage.start()
    with pytest.raises(AgentGone, match=stage.kind.crash) as caught:
        await follow(agent, {"cost": 0.5}, {"crash": 3})
    assert caught.value.cost_usd == (0.5 if stage.kind.cost_timing is CostTiming.AT_ONCE else 0.0)
    assert stage.kind.crash in await asyncio.wait_for(agent.wait_for_end(), PATIENCE_SECONDS)
    with pytest.raises(AgentGone, match=stage.kind.crash):
        await follow(agent, prompt_id="t2#1")


async def test_a_session_continues_after_the_last_finished_step(stage: Stage) -> None:
    agent = await stage.start()
    steps = ({"append": "log", "text": "a"}, {"crash": 3, "first_time_only": True}, {"append": "log", "text": "b"})
    with pytest.raises(AgentGone):
        await follow(agent, *steps, prompt_id="t1#1")
    assert (await stage.client.inspect(stage.launch(agent.session), "t1#1")).finding is TranscriptFinding.UNFINISHED
    again = await stage.start(agent.session)
    assert again.session == agent.session
    updates = await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    assert updates[-1] == TurnAnswer("done", 0.0)
    assert (stage.work_space / "log").read_text() == "ab"
    assert (await stage.client.inspect(stage.launch(agent.session), "t1#2")).finding is TranscriptFinding.ANSWERED


async def test_a_prompt_that_does_not_continue_restarts_its_script(stage: Stage) -> None:
    agent = await stage.start()
    steps = ({"append": "log", "text": "a"}, {"fail": "once", "first_time_only": True})
    with pytest.raises(AgentFailed):
        await follow(agent, *steps, prompt_id="t1#1")
    assert (await follow(agent, *steps, prompt_id="t1#2"))[-1] == TurnAnswer("done", 0.0)
    assert (stage.work_space / "log").read_text() == "aa"


async def test_a_prompt_that_continues_nothing_begins_its_own_script(stage: Stage) -> None:
    agent = await stage.start()
    assert (await follow(agent, {"answer": "mine"}, continues=True))[-1] == TurnAnswer("mine", 0.0)


async def test_an_unknown_session_cannot_be_continued(stage: Stage) -> None:
    with pytest.raises(AgentGone, match="cannot be continued"):
        await stage.start("unheard-of")


async def test_two_agents_without_a_given_session_have_different_sessions(stage: Stage) -> None:
    first, second = await stage.start(), await stage.start()
    assert first.session != second.session


async def test_inspect_finds_the_result_of_each_prompt_in_the_transcript(stage: Stage) -> None:
    launch = stage.launch()
    assert (await stage.client.inspect(launch, "t1#1")).finding is TranscriptFinding.NO_TRANSCRIPT
    agent = await stage.start()
    await follow(agent, {"cost": 0.5}, {"answer": "yes"}, prompt_id="t1#1")
    with pytest.raises(AgentFailed):
        await follow(agent, {"cost": 0.25}, {"fail": "no"}, prompt_id="t2#1")
    answered = Inspection(finding=TranscriptFinding.ANSWERED, text="yes", cost_usd=0.5)
    assert await stage.client.inspect(launch, "t1#1") == answered
    assert await stage.client.inspect(launch, "t2#1") == Inspection(finding=TranscriptFinding.UNFINISHED, cost_usd=0.25)
    assert await stage.client.inspect(launch, "t3#1") == Inspection(finding=TranscriptFinding.ABSENT)


async def test_a_prompt_is_in_the_transcript_before_the_agent_acts_on_it(stage: Stage) -> None:
    agent = await stage.start()
    updates = agent.send(Prompt(id="t1#1", text=scripted({"say": "hello"}, {"hang": True})))
    await anext(updates)
    assert (await stage.client.inspect(stage.launch(), "t1#1")).finding is TranscriptFinding.UNFINISHED
    await updates.aclose()
