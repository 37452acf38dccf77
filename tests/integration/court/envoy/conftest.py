"""Every test of the Envoy runs once per registered backend."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.backends import BackendUnderTest
from tests.integration.court.envoy.scene import DEV, KINDS, TOPOLOGY, Scene
from tests.integration.standins.slack_scene import workspace
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def scene(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with workspace(tmp_path / "slack.json") as slack, backend.open(TOPOLOGY, KINDS) as bus:
        channel = await slack.do("channels", name=DEV)
        # Slack repeats an event that is not acknowledged in time: a slow machine must not cause repetitions.
        await slack.do("settings", ack_seconds=PATIENCE_SECONDS)
        yield Scene(backend, bus, slack, channel["id"])


@pytest.fixture
async def dana(scene: Scene) -> str:
    return await scene.slack.person("dana", in_channel=DEV)
