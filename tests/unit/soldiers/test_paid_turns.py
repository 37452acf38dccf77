"""A command may need several turns: where one is cut off, what all of them have cost is told."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.agent import AgentGone, Prompt, ToolCalled, Update
from kingdom.soldiers.paid_turns import PaidTurns
from tests.fakes.instant_agent import InstantAgents
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS
from tests.unit.soldiers.launching import a_launch

LONG = timedelta(seconds=PATIENCE_SECONDS)


async def the_turns(folder: Path, told: list[float]) -> PaidTurns:
    launch = a_launch(folder)
    return PaidTurns(await InstantAgents().start(launch), launch, LONG, told.append)


async def test_turns_that_come_to_their_end_tell_their_cost_themselves(tmp_path: Path) -> None:
    told: list[float] = []
    turns = await the_turns(tmp_path, told)
    end = await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5})), lambda _: None)
    assert (end.cost_usd, told) == (0.5, [])


async def test_the_end_of_the_agent_tells_what_all_turns_have_cost(tmp_path: Path) -> None:
    told: list[float] = []
    turns = await the_turns(tmp_path, told)
    await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5})), lambda _: None)
    with pytest.raises(AgentGone):
        await turns.take(Prompt(id="t1#1.2", text=scripted({"cost": 0.25}, {"crash": 3})), lambda _: None)
    assert told == [0.75]


async def test_whoever_ends_a_turn_is_told_what_it_had_cost(tmp_path: Path) -> None:
    told: list[float] = []
    turns = await the_turns(tmp_path, told)
    waits = asyncio.Event()

    def hear(update: Update) -> None:
        if isinstance(update, ToolCalled):
            waits.set()

    prompt = Prompt(id="t1#1", text=scripted({"cost": 0.5}, {"write": "here"}, {"hang": True}))
    turn = asyncio.create_task(turns.take(prompt, hear))
    await asyncio.wait_for(waits.wait(), PATIENCE_SECONDS)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert told == [0.5]


async def test_whatever_else_cuts_a_turn_off_what_it_had_cost_is_told(tmp_path: Path) -> None:
    told: list[float] = []
    turns = await the_turns(tmp_path, told)

    def hear(update: Update) -> None:
        if isinstance(update, ToolCalled):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5}, {"write": "here"})), hear)
    assert told == [0.5]


async def test_nothing_is_told_of_a_turn_that_cost_nothing(tmp_path: Path) -> None:
    told: list[float] = []
    turns = await the_turns(tmp_path, told)
    with pytest.raises(AgentGone):
        await turns.take(Prompt(id="t1#1", text=scripted({"crash": 3})), lambda _: None)
    assert told == []
