"""Agents that can be held up, or fail, when they are asked to end."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnUpdate

Hindrance = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing."""


class HinderedAgents(AgentClient):
    """A client that has something done before its agents are interrupted or stopped; raising there prevents it.

    It remembers how much time they were given to stop.
    """

    name = "hindered"
    has_process = True

    def __init__(
        self, client: AgentClient, *, before_interrupt: Hindrance = nothing, before_stop: Hindrance = nothing
    ) -> None:
        self._client = client
        self._before_interrupt = before_interrupt
        self._before_stop = before_stop
        self.graces: list[timedelta] = []

    async def start(self, launch: Launch) -> Agent:
        agent = await self._client.start(launch)
        return _HinderedAgent(agent, self._before_interrupt, self._before_stop, self.graces)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        return await self._client.inspect(launch, prompt_id)


class _HinderedAgent(Agent):
    def __init__(
        self, agent: Agent, before_interrupt: Hindrance, before_stop: Hindrance, graces: list[timedelta]
    ) -> None:
        self.session = agent.session
        self.pid = agent.pid
        self._agent = agent
        self._before_interrupt = before_interrupt
        self._before_stop = before_stop
        self._graces = graces

    def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        return self._agent.send(prompt)

    async def interrupt(self) -> None:
        await self._before_interrupt()
        await self._agent.interrupt()

    async def stop(self, grace: timedelta) -> None:
        self._graces.append(grace)
        await self._before_stop()
        await self._agent.stop(grace)

    async def wait_for_end(self) -> str:
        return await self._agent.wait_for_end()
