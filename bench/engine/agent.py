"""An agent that answers at once and leaves no trace: what is measured is all that is around it."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from kingdom.soldiers.agent import Agent, AgentClient, Answered, Inspection, Launch, Prompt, Update
from kingdom.workflow.model.messages.answers import TranscriptFinding


class InstantAgents(AgentClient):
    """Makes agents that live in this process."""

    name = "instant"
    has_process = False

    async def start(self, launch: Launch) -> "InstantAgent":
        """Return an agent that is ready."""
        return InstantAgent(launch)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Know nothing of earlier prompts."""
        del launch, prompt_id
        return Inspection(finding=TranscriptFinding.NO_TRANSCRIPT)


class InstantAgent(Agent):
    """An agent whose every turn is over as it begins."""

    pid = None

    def __init__(self, launch: Launch) -> None:
        self.session = launch.soldier_id
        self._gone = asyncio.Event()

    async def send(self, prompt: Prompt) -> AsyncGenerator[Update, None]:
        """Answer."""
        yield Answered(text=f"done: {prompt.text}", cost_usd=0.0)

    async def interrupt(self) -> None:
        """Do nothing: no turn lasts."""

    async def stop(self, grace: timedelta) -> None:
        """End."""
        del grace
        self._gone.set()

    async def ended(self) -> str:
        """Wait for the end."""
        await self._gone.wait()
        return "ended as asked"
