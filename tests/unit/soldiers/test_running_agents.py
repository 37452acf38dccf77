"""The agents of a host: their slots, and their expected and unexpected ends."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kingdom.soldiers.agents.port import AgentGone, Launch, Prompt
from kingdom.soldiers.agents.scripted.session import open_session
from kingdom.soldiers.host import running_agents
from kingdom.soldiers.host.running_agents import AgentSession, RunningAgents
from tests.fakes.instant_agent import InstantAgent, InstantAgents
from tests.fakes.scripts import scripted
from tests.unit.soldiers.launching import a_launch, a_start

AT_ONCE = timedelta()


class SlowAgents(InstantAgents):
    """Agents whose start waits for the test."""

    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.asked = asyncio.Event()

    async def start(self, launch: Launch) -> InstantAgent:
        self.asked.set()
        await self.may_start.wait()
        return await super().start(launch)


class StubbornAgent(InstantAgent):
    """An agent that cannot be stopped the first time."""

    graces: list[timedelta]

    async def stop(self, grace: timedelta) -> None:
        self.graces.append(grace)
        if len(self.graces) == 1:
            raise ConnectionResetError("the connection to the agent is gone")
        await super().stop(grace)


class StubbornAgents(InstantAgents):
    """Agents that each fail to stop the first time."""

    async def start(self, launch: Launch) -> StubbornAgent:
        session = open_session(launch.transcript, soldier_id=launch.soldier_id, session=None, model="", durable=False)
        agent = StubbornAgent(session, launch)
        agent.graces = []
        return agent


class UnexpectedEnds:
    """Records agents that ended by themselves."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []

    async def __call__(self, session: AgentSession, reason: str) -> None:
        self.reported.append((session.work_id, reason))


async def test_an_agent_waits_for_a_slot_and_gets_it_when_another_ends(tmp_path: Path) -> None:
    agents = RunningAgents(InstantAgents(), 1, UnexpectedEnds())
    first = await agents.start(a_launch(tmp_path, "one"), a_start("w1"), AsyncExitStack())
    waiting = asyncio.create_task(agents.start(a_launch(tmp_path, "two"), a_start("w2"), AsyncExitStack()))
    await asyncio.sleep(0)
    assert agents.busy == 2
    assert agents.find("w2") is None
    await agents.end(first, AT_ONCE)
    second = await waiting
    assert (agents.find("w1"), agents.find("w2"), agents.busy) == (None, second, 1)
    await agents.end(second, AT_ONCE)


async def test_a_cancelled_start_takes_no_slot(tmp_path: Path) -> None:
    client = SlowAgents()
    agents = RunningAgents(client, 1, UnexpectedEnds())
    given_up = asyncio.create_task(agents.start(a_launch(tmp_path), a_start("w1"), AsyncExitStack()))
    await client.asked.wait()
    assert agents.busy == 1
    given_up.cancel()
    await asyncio.wait([given_up])
    assert agents.busy == 0
    client.may_start.set()
    session = await agents.start(a_launch(tmp_path), a_start("w2"), AsyncExitStack())
    await agents.end(session, AT_ONCE)


async def test_an_agent_that_cannot_be_stopped_at_first_is_stopped_again_and_frees_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_agents, "_STOP_PAUSE_SECONDS", 0.01)
    gone = UnexpectedEnds()
    agents = RunningAgents(StubbornAgents(), 1, gone)
    session = await agents.start(a_launch(tmp_path, "one"), a_start("w1"), AsyncExitStack())
    await agents.end(session, timedelta(seconds=20))
    assert isinstance(session.agent, StubbornAgent)
    # A second stop gets no grace period.
    assert session.agent.graces == [timedelta(seconds=20), AT_ONCE]
    assert (agents.find("w1"), agents.busy, gone.reported) == (None, 0, [])
    await agents.end(await agents.start(a_launch(tmp_path, "two"), a_start("w2"), AsyncExitStack()), AT_ONCE)


async def test_only_an_unexpected_end_is_reported(tmp_path: Path) -> None:
    gone = UnexpectedEnds()
    agents = RunningAgents(InstantAgents(), 2, gone)
    wanted = await agents.start(a_launch(tmp_path, "one"), a_start("w1"), AsyncExitStack())
    crashing = await agents.start(a_launch(tmp_path, "two"), a_start("w2"), AsyncExitStack())
    await agents.end(wanted, AT_ONCE)
    with pytest.raises(AgentGone):
        async for _ in crashing.agent.send(Prompt(id="t1#1", text=scripted({"crash": 5}))):
            pass
    assert crashing.watch is not None
    await crashing.watch
    assert gone.reported == [("w2", "exit code 5")]
    assert agents.busy == 0


async def test_resources_of_an_agent_are_closed_once_it_is_gone(tmp_path: Path) -> None:
    agents = RunningAgents(InstantAgents(), 1, UnexpectedEnds())
    resources, closed = AsyncExitStack(), asyncio.Event()
    resources.callback(closed.set)
    session = await agents.start(a_launch(tmp_path), a_start("w1"), resources)
    assert not closed.is_set()
    await agents.end(session, AT_ONCE)
    assert closed.is_set()


async def test_a_bug_that_an_agent_survives_is_logged_as_an_error_with_its_class_and_its_traceback(
    tmp_path: Path,
) -> None:
    agents = RunningAgents(InstantAgents(), 1, UnexpectedEnds())
    resources, bug = AsyncExitStack(), ZeroDivisionError()

    def fail() -> None:
        raise bug

    resources.callback(fail)
    session = await agents.start(a_launch(tmp_path), a_start("w1"), resources)
    with capture_logs() as logs:
        await agents.end(session, AT_ONCE)
    assert [(each["log_level"], each["error"], each["exc_info"]) for each in logs] == [
        ("error", "ZeroDivisionError", bug)
    ]
    assert agents.busy == 0
