"""A process that runs an agent until it is killed; it prints its session, and "ready" when a tool hangs."""

import asyncio
import json
import sys
from pathlib import Path

from tests.contract.agents.clients import KINDS
from tests.contract.agents.stage import stage_for
from tests.contract.agents.test_processes import hang_in_a_tool
from tests.integration.processes import say


async def run(kind: str, folder: str, mark: str, url: str) -> None:
    stage = stage_for(KINDS[kind], Path(folder), mark, url)
    agent = await stage.start()
    say(agent.session)
    turn = await hang_in_a_tool(agent, stage)
    say("ready")
    await turn


if __name__ == "__main__":
    asyncio.run(run(**json.loads(sys.argv[-1])))
