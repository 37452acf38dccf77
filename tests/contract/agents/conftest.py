"""Every contract test of agents runs once per client."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.agents import program_agent
from kingdom.soldiers.agents.claude import agent as claude_agent
from kingdom.soldiers.agents.claude import transport
from tests.contract.agents.clients import EVERY_KIND, KINDS
from tests.contract.agents.stage import Stage, open_stage
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for agents as long as for everything else, even on a busy machine."""
    for module, name in (
        (transport, "_ANSWER_SECONDS"),
        (claude_agent, "_MCP_SECONDS"),
        (claude_agent, "_SESSION_FILE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, PATIENCE_SECONDS)
    monkeypatch.setattr(program_agent, "_INTERRUPT_LIMIT", timedelta(seconds=PATIENCE_SECONDS))
    # The time that the SDK gives Claude Code to initialize.
    monkeypatch.setenv("CLAUDE_CODE_STREAM_CLOSE_TIMEOUT", str(round(PATIENCE_SECONDS * 1000)))


@pytest.fixture(params=EVERY_KIND)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with open_stage(KINDS[request.param], tmp_path) as stage:
        yield stage


@pytest.fixture
def process_stage(stage: Stage) -> Stage:
    """A stage on which agents are processes."""
    if not stage.client.has_process:
        pytest.skip(f"agents of the client {stage.client.name} have no process")
    return stage


@pytest.fixture
def model_stage(stage: Stage) -> Stage:
    """A stage on which agents call a model."""
    if not stage.kind.has_model:
        pytest.skip(f"agents of the client {stage.client.name} have no model")
    return stage
