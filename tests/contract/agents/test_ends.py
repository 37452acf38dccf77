"""How agents end: gracefully, by force, and never twice."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from kingdom.soldiers.agents.port import AgentGone, PetitionRequest, Prompt, TurnAnswer
from kingdom.workflow.model.messages.answers import TranscriptFinding
from tests.contract.agents.clients import CostTiming
from tests.contract.agents.stage import A_WHILE, AT_ONCE, Stage, follow, only, until_exists, until_stopped, updates_of
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS


async def test_an_idle_agent_ends_by_itself_within_the_grace(stage: Stage) -> None:
    agent = await stage.start()
    await asyncio.wait_for(agent.stop(A_WHILE), PATIENCE_SECONDS)
    assert await agent.wait_for_end() == "exit code 0"


async def test_a_busy_agent_may_finish_its_turn_within_the_grace(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"write": "began"}, {"wait_for": "go"}, {"answer": "in time"}))
    await until_exists(stage.work_space / "began")
    stop = asyncio.create_task(agent.stop(A_WHILE))
    await asyncio.sleep(0)
    (stage.work_space / "go").touch()
    assert (await asyncio.wait_for(turn, PATIENCE_SECONDS))[-1] == TurnAnswer("in time", 0.0)
    await asyncio.wait_for(stop, PATIENCE_SECONDS)
    assert await agent.wait_for_end() == "exit code 0"


@pytest.mark.parametrize("grace", [AT_ONCE, timedelta(milliseconds=50)])
async def test_a_busy_agent_is_killed_after_the_grace(stage: Stage, grace: timedelta) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"cost": 0.5}, {"write": "began"}, {"hang": True}))
    await until_exists(stage.work_space / "began")
    await asyncio.wait_for(agent.stop(grace), PATIENCE_SECONDS)
    with pytest.raises(AgentGone, match="SIGKILL") as caught:
        await asyncio.wait_for(turn, PATIENCE_SECONDS)
    assert caught.value.cost_usd == 0.5 or stage.kind.cost_timing is not CostTiming.AT_ONCE
    assert "SIGKILL" in await agent.wait_for_end()


async def test_an_agent_can_be_stopped_several_times(stage: Stage) -> None:
    agent = await stage.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(agent.stop(A_WHILE), agent.stop(A_WHILE))
        await agent.stop(AT_ONCE)
    assert await agent.wait_for_end() == "exit code 0"


async def test_a_second_stop_may_shorten_the_grace(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"write": "began"}, {"hang": True}))
    await until_exists(stage.work_space / "began")
    patient = asyncio.create_task(agent.stop(timedelta(hours=1)))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await agent.stop(AT_ONCE)
        await patient
        with pytest.raises(AgentGone):
            await turn


async def test_a_stopped_agent_takes_no_prompt(stage: Stage) -> None:
    agent = await stage.start()
    await agent.stop(AT_ONCE)
    with pytest.raises(AgentGone):
        await follow(agent)
    assert (await stage.client.inspect(stage.launch(), "w1-t1#1")).finding is TranscriptFinding.ABSENT


async def test_an_agent_that_stops_reacting_is_killed_after_the_grace(process_stage: Stage) -> None:
    if not process_stage.kind.can_stop_reacting:
        pytest.skip(f"the adapter of the client {process_stage.client.name} reacts even if its agent does not")
    agent = await process_stage.start()
    turn = asyncio.create_task(follow(agent, {"write": "began"}, {"hang": "deaf"}))
    await until_exists(process_stage.work_space / "began")
    await until_stopped(process_stage)
    await agent.interrupt()
    await asyncio.wait_for(agent.stop(timedelta(milliseconds=50)), PATIENCE_SECONDS)
    with pytest.raises(AgentGone, match="SIGKILL"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)


async def test_a_stopped_session_is_continued_by_a_new_agent(stage: Stage) -> None:
    agent = await stage.start()
    turn = asyncio.create_task(follow(agent, {"write": "began"}, {"wait_for": "go"}, prompt_id="t1#1"))
    await until_exists(stage.work_space / "began")
    await agent.stop(AT_ONCE)
    with pytest.raises(AgentGone):
        await turn
    (stage.work_space / "go").touch()
    again = await stage.start(agent.session)
    updates = await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    assert updates[-1] == TurnAnswer("done", 0.0)


async def test_petitions_of_a_killed_agent_are_found_in_their_order_and_not_reported_again(stage: Stage) -> None:
    agent = await stage.start()
    petitions = [PetitionRequest("github.comment", {"text": text}) for text in ("one", "two")]
    asking: list[dict[str, Any]] = [{"petition": petition.kind, "body": petition.body} for petition in petitions]
    turn = asyncio.create_task(
        follow(agent, *asking, {"write": "began"}, {"wait_for": "go"}, {"petition": "github.close"}, prompt_id="t1#1")
    )
    await until_exists(stage.work_space / "began")
    await agent.stop(AT_ONCE)
    with pytest.raises(AgentGone):
        await turn
    found = await stage.client.inspect(stage.launch(agent.session), "t1#1")
    assert (found.finding, found.petitions) == (TranscriptFinding.UNFINISHED, tuple(petitions))
    (stage.work_space / "go").touch()
    again = await stage.start(agent.session)
    updates = await updates_of(again, Prompt(id="t1#2", text="go on", continues=True))
    assert only(updates, PetitionRequest, TurnAnswer) == [PetitionRequest("github.close", {}), TurnAnswer("done", 0.0)]
    assert (await stage.client.inspect(stage.launch(agent.session), "t1#1")).petitions == tuple(petitions)
    later = await stage.client.inspect(stage.launch(agent.session), "t1#2")
    assert (later.finding, later.petitions) == (TranscriptFinding.ANSWERED, (PetitionRequest("github.close", {}),))


async def test_a_petition_is_in_the_transcript_before_it_is_reported(stage: Stage) -> None:
    agent = await stage.start()
    updates = agent.send(Prompt(id="t1#1", text=scripted({"petition": "github.comment"}, {"hang": True})))
    async with asyncio.timeout(PATIENCE_SECONDS):
        petition = await anext(update async for update in updates if isinstance(update, PetitionRequest))
    assert (await stage.client.inspect(stage.launch(), "t1#1")).petitions == (petition,)
    await updates.aclose()
