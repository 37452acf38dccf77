"""The state after the end of an ACP agent."""

import json
import re
from pathlib import Path

from kingdom.soldiers.agent_tools.host_tools import HostTools
from tests.contract.agents.stage import AT_ONCE
from tests.integration.soldiers.acp_scene import Scene


async def test_the_tools_of_an_agent_are_closed_even_if_its_end_cannot_be_recorded(tmp_path: Path) -> None:
    async def no_verdict(_: str) -> None:
        return None

    scene = Scene(tmp_path)
    agent = await scene.start(tools=HostTools(tmp_path, no_verdict))
    (opened,) = scene.requests("session/new")
    (socket,) = map(Path, re.findall(r'unix:([^"]+)', json.dumps(opened)))
    assert socket.exists()
    transcript = tmp_path / "soldier-1-1.json"
    transcript.unlink()
    transcript.mkdir()
    await agent.stop(AT_ONCE)
    assert not socket.parent.exists()
