"""One turn of an agent: what is told on the way, how it ends, and what happens when its time is over."""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.agent import AgentFailed, Answered, Asked, Petitioned, Prompt, Said, Update
from kingdom.soldiers.turn import take_turn
from tests.fakes.instant_agent import InstantAgent, InstantAgents
from tests.fakes.scripts import scripted
from tests.unit.soldiers.launching import a_launch

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=20)


async def an_agent(folder: Path) -> InstantAgent:
    return await InstantAgents().start(a_launch(folder))


async def test_a_turn_tells_what_happens_and_returns_the_answer(tmp_path: Path) -> None:
    told: list[Update] = []
    text = scripted({"say": "well"}, {"petition": "comment", "body": {}}, {"cost": 0.5}, {"answer": "done so"})
    ended = await take_turn(await an_agent(tmp_path), Prompt(id="t1#1", text=text), LONG, told.append)
    assert ended == Answered("done so", 0.5)
    assert told[:2] == [Said("well"), Petitioned("comment", {})]
    assert ended not in told


async def test_a_question_ends_a_turn(tmp_path: Path) -> None:
    ended = await take_turn(
        await an_agent(tmp_path), Prompt(id="t1#1", text=scripted({"ask": "Why?"})), LONG, lambda _: None
    )
    assert ended == Asked("Why?", (), 0.0)


async def test_a_turn_that_takes_too_long_fails_and_the_agent_takes_the_next_one(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    with pytest.raises(AgentFailed, match=r"no answer within 0\.02 s: give the task more time, or a smaller query"):
        await take_turn(agent, Prompt(id="t1#1", text=scripted({"hang": True})), SHORT, lambda _: None)
    ended = await take_turn(agent, Prompt(id="t1#2", text=scripted({"answer": "now"})), LONG, lambda _: None)
    assert ended == Answered("now", 0.0)


async def test_a_failure_of_the_agent_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(AgentFailed, match="no way"):
        await take_turn(
            await an_agent(tmp_path), Prompt(id="t1#1", text=scripted({"fail": "no way"})), LONG, lambda _: None
        )


async def test_an_agent_that_says_nothing_for_too_long_fails_its_turn_and_takes_the_next_one(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    silent = Prompt(id="t1#1", text=scripted({"say": "well"}, {"hang": True}))
    with pytest.raises(AgentFailed, match=r"no sign of life for 0\.02 s"):
        await take_turn(agent, silent, LONG, lambda _: None, idle_limit=SHORT)
    ended = await take_turn(agent, Prompt(id="t1#2", text=scripted({"answer": "now"})), LONG, lambda _: None)
    assert ended == Answered("now", 0.0)


async def test_an_agent_that_keeps_saying_things_may_take_its_time(tmp_path: Path) -> None:
    told: list[Update] = []
    talking = Prompt(id="t1#1", text=scripted({"stream": "on and " * 12, "every": 0.05}, {"answer": "on"}))
    patience = timedelta(seconds=0.5)
    began = time.monotonic()
    ended = await take_turn(await an_agent(tmp_path), talking, LONG, told.append, idle_limit=patience)
    assert ended == Answered("on", 0.0)
    assert time.monotonic() - began > 2 * patience.total_seconds()


async def test_an_agent_that_keeps_saying_things_has_no_more_time_than_its_query(tmp_path: Path) -> None:
    talking = Prompt(id="t1#1", text=scripted({"stream": "on and " * 100, "every": 0.05}))
    limit = timedelta(seconds=0.2)
    with pytest.raises(AgentFailed, match=r"no answer within 0\.2 s"):
        await take_turn(await an_agent(tmp_path), talking, limit, lambda _: None, idle_limit=LONG)
