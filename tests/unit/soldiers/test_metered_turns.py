"""A command may need several turns. If one is cut off, the cost of all of them is reported."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.agents.port import AgentGone, BudgetSpent, Prompt, ToolUse, TurnUpdate
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.turns.metered_turns import MeteredTurns
from tests.fakes.instant_agent import InstantAgents
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS
from tests.unit.soldiers.launching import a_launch

LONG = timedelta(seconds=PATIENCE_SECONDS)


async def the_turns(folder: Path, reported: list[float], meter: Meter | None = None) -> MeteredTurns:
    launch = replace(a_launch(folder), meter=meter)
    return MeteredTurns(await InstantAgents().start(launch), launch, LONG, reported.append)


async def test_completed_turns_report_their_cost_themselves(tmp_path: Path) -> None:
    reported: list[float] = []
    turns = await the_turns(tmp_path, reported)
    end = await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5})), lambda _: None)
    assert (end.cost_usd, reported) == (0.5, [])


async def test_when_the_agent_ends_the_cost_of_all_turns_is_reported(tmp_path: Path) -> None:
    reported: list[float] = []
    turns = await the_turns(tmp_path, reported)
    await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5})), lambda _: None)
    with pytest.raises(AgentGone):
        await turns.take(Prompt(id="t1#1.2", text=scripted({"cost": 0.25}, {"crash": 3})), lambda _: None)
    assert reported == [0.75]


async def test_the_cost_of_a_cancelled_turn_is_reported(tmp_path: Path) -> None:
    reported: list[float] = []
    turns = await the_turns(tmp_path, reported)
    waits = asyncio.Event()

    def on_update(update: TurnUpdate) -> None:
        if isinstance(update, ToolUse):
            waits.set()

    prompt = Prompt(id="t1#1", text=scripted({"cost": 0.5}, {"write": "here"}, {"hang": True}))
    turn = asyncio.create_task(turns.take(prompt, on_update))
    await asyncio.wait_for(waits.wait(), PATIENCE_SECONDS)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert reported == [0.5]


async def test_the_cost_of_a_turn_is_reported_however_it_was_cut_off(tmp_path: Path) -> None:
    reported: list[float] = []
    turns = await the_turns(tmp_path, reported)

    def on_update(update: TurnUpdate) -> None:
        if isinstance(update, ToolUse):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        await turns.take(Prompt(id="t1#1", text=scripted({"cost": 0.5}, {"write": "here"})), on_update)
    assert reported == [0.5]


async def test_a_turn_without_cost_reports_nothing(tmp_path: Path) -> None:
    reported: list[float] = []
    turns = await the_turns(tmp_path, reported)
    with pytest.raises(AgentGone):
        await turns.take(Prompt(id="t1#1", text=scripted({"crash": 3})), lambda _: None)
    assert reported == []


async def test_the_cost_is_the_metered_amount_including_calls_between_turns(tmp_path: Path) -> None:
    reported: list[float] = []
    meter = Meter()
    turns = await the_turns(tmp_path, reported, meter)
    meter.charge(0.5)
    first = await turns.take(Prompt(id="t1#1", text=scripted({"cost": 9.0})), lambda _: None)
    meter.charge(0.25)
    second = await turns.take(Prompt(id="t1#1", text=scripted({"cost": 9.0})), lambda _: None)
    assert (first.cost_usd, second.cost_usd, meter.unclaimed_usd, reported) == (0.5, 0.25, 0.0, [])
    noted = [entry for entry in read_entries(a_launch(tmp_path).transcript) if entry.get("type") == "metered"]
    assert noted[-1]["costUsd"] == 0.75


async def test_a_meter_ends_a_turn_that_reports_no_cost(tmp_path: Path) -> None:
    meter = Meter()
    turns = await the_turns(tmp_path, [], meter)

    def on_update(update: TurnUpdate) -> None:
        if isinstance(update, ToolUse):
            meter.charge(1.25)

    prompt = Prompt(id="t1#1", text=scripted({"write": "here"}, {"hang": True}), budget_usd=1.0)
    with pytest.raises(BudgetSpent) as caught:
        await turns.take(prompt, on_update)
    assert (caught.value.cost_usd, meter.unclaimed_usd) == (1.25, 0.0)


async def test_no_cost_of_a_cancelled_turn_is_lost(tmp_path: Path) -> None:
    reported: list[float] = []
    meter = Meter()
    turns = await the_turns(tmp_path, reported, meter)
    waits = asyncio.Event()

    def on_update(update: TurnUpdate) -> None:
        if isinstance(update, ToolUse):
            waits.set()

    turn = asyncio.create_task(turns.take(Prompt(id="t1#1", text=scripted({"write": "x"}, {"hang": True})), on_update))
    await asyncio.wait_for(waits.wait(), PATIENCE_SECONDS)
    meter.charge(0.5)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert sum(reported) + meter.unclaimed_usd == 0.5
    assert meter.is_idle.is_set()
