"""One turn of an agent: its updates, its end, and what happens at its limits."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.agents.limits import LOOP_LENGTH, AgentLoops
from kingdom.soldiers.agents.port import (
    Agent,
    AgentFailed,
    AgentGone,
    AgentMessage,
    BudgetSpent,
    CostUpdate,
    PetitionRequest,
    Prompt,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
    TurnTooLong,
    TurnUpdate,
    UsageLimited,
)
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.turns.turn import take_turn
from tests.fakes.instant_agent import InstantAgent, InstantAgents
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS
from tests.unit.soldiers.launching import a_launch

LONG = timedelta(seconds=PATIENCE_SECONDS)
SHORT = timedelta(milliseconds=20)


async def an_agent(folder: Path) -> InstantAgent:
    return await InstantAgents().start(a_launch(folder))


async def test_a_turn_shows_its_progress_and_returns_the_answer(tmp_path: Path) -> None:
    reported: list[TurnUpdate] = []
    text = scripted({"say": "well"}, {"petition": "comment", "body": {}}, {"cost": 0.5}, {"answer": "done so"})
    ended = await take_turn(await an_agent(tmp_path), Prompt(id="t1#1", text=text), LONG, reported.append)
    assert ended == TurnAnswer("done so", 0.5)
    assert reported[:2] == [AgentMessage("well"), PetitionRequest("comment", {})]
    assert ended not in reported


async def test_a_question_ends_a_turn(tmp_path: Path) -> None:
    ended = await take_turn(
        await an_agent(tmp_path), Prompt(id="t1#1", text=scripted({"ask": "Why?"})), LONG, lambda _: None
    )
    assert ended == TurnQuestion("Why?", (), 0.0)


async def test_a_turn_that_takes_too_long_fails_and_the_agent_takes_the_next_one(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    with pytest.raises(AgentFailed, match=r"no answer within 0\.02 s: give the task more time, or a smaller query"):
        await take_turn(agent, Prompt(id="t1#1", text=scripted({"hang": True})), SHORT, lambda _: None)
    ended = await take_turn(agent, Prompt(id="t1#2", text=scripted({"answer": "now"})), LONG, lambda _: None)
    assert ended == TurnAnswer("now", 0.0)


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
    assert ended == TurnAnswer("now", 0.0)


async def test_an_agent_that_keeps_sending_messages_still_fails_at_the_time_limit_of_its_query(tmp_path: Path) -> None:
    talking = Prompt(id="t1#1", text=scripted({"stream": "on and " * 100, "every": 0.05}))
    limit = timedelta(seconds=0.2)
    with pytest.raises(AgentFailed, match=r"no answer within 0\.2 s"):
        await take_turn(await an_agent(tmp_path), talking, limit, lambda _: None, idle_limit=LONG)


async def test_a_turn_that_takes_too_long_reports_its_cost(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    text = scripted({"cost": 0.5}, {"say": "well"}, {"hang": True})
    with pytest.raises(TurnTooLong) as caught:
        await take_turn(agent, Prompt(id="t1#1", text=text), LONG, lambda _: None, idle_limit=SHORT)
    assert caught.value.cost_usd == 0.5


class LateBiller(Agent):
    """An agent that hangs, and reports its cost only at the end of its turn."""

    session, pid = "late", None

    def __init__(self, end: TurnAnswer | AgentFailed) -> None:
        self._interrupted = asyncio.Event()
        self._end = end

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        yield AgentMessage(f"I begin with {prompt.id}")
        await self._interrupted.wait()
        yield AgentMessage("I was interrupted")
        if isinstance(self._end, AgentFailed):
            raise self._end
        yield self._end

    async def interrupt(self) -> None:
        self._interrupted.set()

    async def stop(self, grace: timedelta) -> None:
        """Do nothing, because no process runs."""

    async def wait_for_end(self) -> str:
        return "it never ran"


async def test_an_agent_that_keeps_sending_messages_does_not_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []
    timeout_at = asyncio.timeout_at

    def note(when: float) -> asyncio.Timeout:
        deadlines.append(when)
        return timeout_at(when)

    monkeypatch.setattr(asyncio, "timeout_at", note)
    talking = Prompt(id="t1#1", text=scripted({"stream": "on and on", "every": 0.001}, {"answer": "on"}))
    ended = await take_turn(await an_agent(tmp_path), talking, 2 * LONG, lambda _: None, idle_limit=LONG)
    assert ended == TurnAnswer("on", 0.0)
    # Each message restarts the time limit for the next one.
    assert len(deadlines) == 4
    assert all(earlier < later for earlier, later in itertools.pairwise(deadlines))


@pytest.mark.parametrize(("limit", "idle_limit"), [(SHORT, LONG), (LONG, SHORT)], ids=["time", "silence"])
async def test_a_turn_that_takes_too_long_is_interrupted_and_read_to_its_end(
    limit: timedelta, idle_limit: timedelta
) -> None:
    reported: list[TurnUpdate] = []
    agent = LateBiller(AgentFailed("the turn was interrupted", 0.75))
    with pytest.raises(TurnTooLong) as caught:
        await take_turn(agent, Prompt(id="t1#1", text=""), limit, reported.append, idle_limit=idle_limit)
    assert caught.value.cost_usd == 0.75
    assert reported == [AgentMessage("I begin with t1#1"), AgentMessage("I was interrupted")]


async def test_an_answer_after_the_deadline_is_accepted() -> None:
    answer = TurnAnswer("just in time", 0.75)
    assert await take_turn(LateBiller(answer), Prompt(id="t1#1", text=""), SHORT, lambda _: None) == answer


async def test_a_turn_that_reaches_its_budget_is_interrupted_and_its_session_continues_later(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    text = scripted({"cost": 0.5}, {"cost": 0.75}, {"wait_for": "money"}, {"write": "late"}, {"answer": "well"})
    with pytest.raises(BudgetSpent, match=r"has cost \$1.25, and \$1 were left") as caught:
        await take_turn(agent, Prompt(id="t1#1", text=text, budget_usd=1.0), LONG, lambda _: None)
    assert caught.value.cost_usd == 1.25
    assert not (tmp_path / "late").exists()
    (tmp_path / "money").touch()
    ended = await take_turn(agent, Prompt(id="t1#2", text=text, continues=True), LONG, lambda _: None)
    assert ended == TurnAnswer("well", 0.0)


async def test_a_turn_may_cost_less_than_its_budget(tmp_path: Path) -> None:
    text = scripted({"cost": 0.5}, {"answer": "cheap"})
    ended = await take_turn(
        await an_agent(tmp_path), Prompt(id="t1#1", text=text, budget_usd=0.6), LONG, lambda _: None
    )
    assert ended == TurnAnswer("cheap", 0.5)


async def test_an_agent_that_ends_reports_the_cost_of_its_turn(tmp_path: Path) -> None:
    text = scripted({"cost": 0.5}, {"crash": 3})
    with pytest.raises(AgentGone) as caught:
        await take_turn(await an_agent(tmp_path), Prompt(id="t1#1", text=text), LONG, lambda _: None)
    assert caught.value.cost_usd == 0.5


async def test_a_limit_of_the_vendor_is_passed_on_and_the_script_continues_after_it(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    text = scripted({"cost": 0.5}, {"usage_limit": 3600}, {"answer": "at last"})
    before = datetime.now(UTC)
    with pytest.raises(UsageLimited, match="usage limit reached") as caught:
        await take_turn(agent, Prompt(id="t1#1", text=text), LONG, lambda _: None)
    assert caught.value.cost_usd == 0.5
    assert before <= caught.value.until - timedelta(hours=1) <= datetime.now(UTC)
    ended = await take_turn(agent, Prompt(id="t1#2", text=text, continues=True), LONG, lambda _: None)
    assert ended == TurnAnswer("at last", 0.0)


SAME = "until rm go; do sleep 0.01; done 2>/dev/null"


def looping(times: int, *more: dict[str, object]) -> str:
    """Return a script that repeats one step, and waits before each repetition."""
    return scripted({"cost": 0.25}, *[{"run": SAME}] * times, *more)


def recording(reported: list[TurnUpdate], folder: Path) -> Callable[[TurnUpdate], None]:
    """Return a callback that records updates, and ends every tool call except each LOOP_LENGTH-th one."""

    def record(update: TurnUpdate) -> None:
        reported.append(update)
        if isinstance(update, ToolUse) and sum(isinstance(each, ToolUse) for each in reported) % LOOP_LENGTH:
            (folder / "go").touch()

    return record


async def test_a_looping_agent_is_warned_and_continues(tmp_path: Path) -> None:
    reported: list[TurnUpdate] = []
    agent = await an_agent(tmp_path)
    text = looping(LOOP_LENGTH, {"cost": 0.5}, {"answer": "out"})
    ended = await take_turn(agent, Prompt(id="t1#1", text=text), LONG, recording(reported, tmp_path))
    assert ended == TurnAnswer("out", 0.75)
    assert [update for update in reported if isinstance(update, CostUpdate)] == [CostUpdate(0.25), CostUpdate(0.75)]
    prompts = [entry["text"] for entry in read_entries(tmp_path / "soldier-1.json") if "text" in entry]
    assert prompts[1].startswith(f"You called run {LOOP_LENGTH} times in a row with the same input: {SAME}\n")


async def test_an_agent_that_keeps_looping_fails_its_turn(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    with pytest.raises(AgentLoops, match=f"the agent called run {LOOP_LENGTH} times in a row") as caught:
        await take_turn(agent, Prompt(id="t1#1", text=looping(3 * LOOP_LENGTH)), LONG, recording([], tmp_path))
    assert caught.value.cost_usd == 0.25


async def test_the_cost_of_all_prompts_of_a_turn_is_bounded(tmp_path: Path) -> None:
    agent = await an_agent(tmp_path)
    text = looping(LOOP_LENGTH, {"cost": 0.5}, {"wait_for": "never"})
    with pytest.raises(BudgetSpent) as caught:
        await take_turn(agent, Prompt(id="t1#1", text=text, budget_usd=0.7), LONG, recording([], tmp_path))
    assert caught.value.cost_usd == 0.75
    found = await InstantAgents().inspect(a_launch(tmp_path), "t1#1")
    assert found.cost_usd == 0.75
