"""An ACP agent whose turn is interrupted, tested with a program that ends its turn when it is cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agents.acp.agent import AcpAgent
from kingdom.soldiers.agents.port import Agent, AgentFailed, AgentGone, TurnAnswer
from tests.contract.agents.stage import A_WHILE, only
from tests.integration.running import eventually
from tests.integration.soldiers.acp_scene import Scene, message_update, take
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    await scene.close()


async def has_prompt(scene: Scene) -> bool:
    return bool(scene.requests("session/prompt"))


async def interrupt_turn(scene: Scene, agent: Agent, *, cancellations: int = 1) -> None:
    """Begin the first turn, and interrupt it; it ends with the last of that many cancellations."""
    waiting = (message_update("I wait"), {"until_cancelled": cancellations})
    turn = asyncio.create_task(take(agent, *waiting))
    await eventually(partial(has_prompt, scene))
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted"):
        await asyncio.wait_for(turn, PATIENCE_SECONDS)


def note_times(monkeypatch: pytest.MonkeyPatch, method: str) -> list[float]:
    """Return a list that gets the time of each call of a method of ACP agents."""
    times, call = list[float](), getattr(AcpAgent, method)

    async def note_and_call(*arguments: Any) -> None:
        times.append(time.monotonic())
        await call(*arguments)

    monkeypatch.setattr(AcpAgent, method, note_and_call)
    return times


async def test_an_interrupt_cancels_the_turn(scene: Scene) -> None:
    await interrupt_turn(scene, await scene.start())
    assert scene.entries("interrupted")


async def test_cancellations_are_repeated_with_growing_pauses_and_the_next_prompt_waits_after_the_last(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, prompted = note_times(monkeypatch, "_ask_for_end"), note_times(monkeypatch, "_prompt")
    agent = await scene.start()
    await interrupt_turn(scene, agent, cancellations=4)
    assert only(await take(agent, prompt_id="t2#1"), TurnAnswer) == [TurnAnswer("done", 0.0)]
    pauses = [later - earlier for earlier, later in pairwise(cancelled)]
    assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=False))
    # The second begins a moment before the noted time.
    assert prompted[-1] - cancelled[-1] >= 0.9


async def test_a_prompt_waits_for_nothing_if_the_previous_turn_was_not_interrupted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AcpAgent, "_late_interrupt_seconds", 2 * PATIENCE_SECONDS)
    agent = await scene.start()
    await take(agent)
    assert (await asyncio.wait_for(take(agent, prompt_id="t2#1"), PATIENCE_SECONDS))[-1] == TurnAnswer("done", 0.0)


async def test_an_interrupt_of_a_waiting_prompt_sends_nothing_to_the_agent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = note_times(monkeypatch, "_ask_for_end")
    agent = await scene.start()
    await interrupt_turn(scene, agent)
    earlier = len(cancelled)
    waiting = asyncio.create_task(take(agent, prompt_id="t2#1"))
    await asyncio.sleep(0)
    await agent.interrupt()
    with pytest.raises(AgentFailed, match="interrupted"):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert len(cancelled) == earlier
    assert only(await take(agent, prompt_id="t3#1"), TurnAnswer) == [TurnAnswer("done", 0.0)]
    assert len(scene.requests("session/prompt")) == 2


async def test_a_waiting_prompt_that_is_given_up_leaves_no_interrupt_behind(scene: Scene) -> None:
    agent = await scene.start()
    await interrupt_turn(scene, agent)
    waiting = asyncio.create_task(take(agent, prompt_id="t2#1"))
    await asyncio.sleep(0)
    await agent.interrupt()
    (interrupt,) = [task for task in asyncio.all_tasks() if task.get_name() == "interrupt of t2#1"]
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.wait_for(interrupt, PATIENCE_SECONDS)
    assert (await take(agent, prompt_id="t3#1"))[-1] == TurnAnswer("done", 0.0)


async def test_a_prompt_that_waits_when_the_agent_is_stopped_is_not_sent(scene: Scene) -> None:
    agent = await scene.start()
    await interrupt_turn(scene, agent)
    waiting = asyncio.create_task(take(agent, prompt_id="t2#1"))
    await asyncio.sleep(0)
    await agent.stop(A_WHILE)
    with pytest.raises(AgentGone):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert len(scene.requests("session/prompt")) == len(scene.entries("prompt")) == 1
