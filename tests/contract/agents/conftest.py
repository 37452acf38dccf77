"""Every contract test of agents runs once per client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.agents.clients import EVERY_KIND, KINDS
from tests.contract.agents.stage import Stage, open_stage


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
    """A stage on which agents ask a model."""
    if not stage.kind.has_model:
        pytest.skip(f"agents of the client {stage.client.name} have no model")
    return stage
