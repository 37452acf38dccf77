"""Agents whose interruption and stop a test can delay or make fail."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnUpdate

Interception = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing."""


class InterceptedAgents(AgentClient):
    """A client that calls a function before it interrupts or stops an agent. If the function fails, so does the call.

    `graces` lists how much time each agent got to stop.
    """

    name = "intercepted"
    has_process = True

    def __init__(
        self, client: AgentClient, *, before_interrupt: Interception = nothing, before_stop: Interception = nothing
    ) -> None:
        self._client = client
        self._before_interrupt = before_interrupt
        self._before_stop = before_stop
        self.graces: list[timedelta] = []

    async def start(self, launch: Launch) -> Agent:
        agent = await self._client.start(launch)
        return _InterceptedAgent(agent, self._before_interrupt, self._before_stop, self.graces)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        return await self._client.inspect(launch, prompt_id)


class _InterceptedAgent(Agent):
    def __init__(
        self, agent: Agent, before_interrupt: Interception, before_stop: Interception, graces: list[timedelta]
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
