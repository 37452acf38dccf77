"""Every contract test of agents runs once per client."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kingdom.soldiers.agent import AgentClient
from kingdom.soldiers.scripted.client import ScriptedAgents
from tests.contract.agents.stage import Stage
from tests.fakes.instant_agent import InstantAgents

CLIENTS: dict[str, Callable[[], AgentClient]] = {
    "scripted": ScriptedAgents,
    "scripted, not contained": lambda: ScriptedAgents(contained=False),
    "instant": InstantAgents,
}


@pytest.fixture(params=CLIENTS)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(CLIENTS[request.param](), tmp_path)
    yield stage
    await stage.close()


@pytest.fixture
def process_stage(stage: Stage) -> Stage:
    """A stage on which agents are processes."""
    if not stage.client.has_process:
        pytest.skip(f"agents of the client {stage.client.name} have no process")
    return stage
