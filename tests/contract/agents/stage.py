"""A client with a place of its own, and the agents that a test starts with it."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.soldiers.agent import Agent, AgentClient, Launch, Prompt, Update
from tests.fakes.scripts import scripted
from tests.integration.running import PATIENCE_SECONDS, eventually

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
AT_ONCE = timedelta()
A_WHILE = timedelta(seconds=20)


class Stage:
    """Starts agents in one work space with one transcript, and ends them all."""

    def __init__(self, client: AgentClient, folder: Path, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.client = client
        self.work_space = folder / "work space"
        self.work_space.mkdir()
        self.transcript = folder / "soldier-1-1.json"
        self.errors = folder / "soldier-1-1.err"
        self._environment = environment
        self._agents: list[Agent] = []

    def launch(self, session: str | None = None) -> Launch:
        return Launch(
            soldier_id="soldier-1-1",
            work_space=self.work_space,
            model="free",
            session=session,
            transcript=self.transcript,
            errors=self.errors,
            environment=self._environment,
            mcp_servers=(),
        )

    async def start(self, session: str | None = None) -> Agent:
        agent = await asyncio.wait_for(self.client.start(self.launch(session)), PATIENCE_SECONDS)
        self._agents.append(agent)
        return agent

    async def close(self) -> None:
        for agent in self._agents:
            await asyncio.wait_for(agent.stop(AT_ONCE), PATIENCE_SECONDS)


async def updates_of(agent: Agent, prompt: Prompt) -> list[Update]:
    """Return everything that an agent tells about a prompt."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [update async for update in agent.send(prompt)]


async def follow(agent: Agent, *steps: dict[str, Any], prompt_id: str = "w1-t1#1", **options: Any) -> list[Update]:
    """Let an agent follow a script, and return what it tells."""
    return await updates_of(agent, Prompt(id=prompt_id, text=scripted(*steps), **options))


async def until_exists(path: Path) -> None:
    """Wait until a file is there."""

    async def there() -> bool:
        return path.exists()

    await eventually(there)
