"""An agent that answers at once, so that a bench measures only the engine and the host."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnAnswer, TurnUpdate
from kingdom.workflow.model.messages.answers import TranscriptFinding


class InstantAgents(AgentClient):
    """Creates agents in this process."""

    name = "instant"
    has_process = False

    async def start(self, launch: Launch) -> "InstantAgent":
        """Return a ready agent."""
        return InstantAgent(launch)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Report every earlier prompt as unknown."""
        del launch, prompt_id
        return Inspection(finding=TranscriptFinding.NO_TRANSCRIPT)


class InstantAgent(Agent):
    """An agent whose turns end at once."""

    pid = None

    def __init__(self, launch: Launch) -> None:
        self.session = launch.soldier_id
        self._gone = asyncio.Event()

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        """Answer."""
        yield TurnAnswer(text=f"done: {prompt.text}", cost_usd=0.0)

    async def interrupt(self) -> None:
        """Do nothing, because every turn has ended."""

    async def stop(self, grace: timedelta) -> None:
        """End."""
        del grace
        self._gone.set()

    async def wait_for_end(self) -> str:
        """Wait for the end."""
        await self._gone.wait()
        return "ended as asked"
