"""A process that starts a scripted agent with a tool and then does nothing, until it is killed."""

import asyncio
import json
import sys
from pathlib import Path

from kingdom.soldiers.agent import Prompt
from kingdom.soldiers.scripted.client import ScriptedAgents
from tests.contract.agents.stage import ENVIRONMENT, Stage
from tests.fakes.scripts import scripted
from tests.integration.processes import say
from tests.integration.soldiers.processes import MARK, until_runs


async def run(folder: Path, mark: str) -> None:
    stage = Stage(ScriptedAgents(), folder, {**ENVIRONMENT, MARK: mark})
    agent = await stage.start()
    updates = agent.send(Prompt(id="t1#1", text=scripted({"run": "setsid sleep 901 & sleep 902"})))
    await anext(updates)
    await until_runs(mark, "sleep 901")
    await until_runs(mark, "sleep 902")
    say("ready")
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = json.loads(sys.argv[-1])
    asyncio.run(run(Path(options["folder"]), options["mark"]))
