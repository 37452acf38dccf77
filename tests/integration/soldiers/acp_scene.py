"""A folder for ACP agents, and helpers that write the steps of their prompts."""

import json
import sys
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents.acp.client import AcpAgentClient
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.port import Agent, Prompt, TurnUpdate
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.sandbox.vendors import Vendor
from tests.contract.agents.stage import ENVIRONMENT, Stage, updates_of
from tests.integration.soldiers import acp_program

PLAIN = AcpProfile(
    name="plain",
    vendor=Vendor.OPENAI,
    program=sys.executable,
    npm_packages="plain",
    model="best",
    url="http://127.0.0.1:1",
    arguments=("-I", acp_program.__file__),
    prices={
        "best": Price(input=10.0, output=100.0, cache_read=1.0),
        "dear": Price(input=20.0, output=200.0, cache_read=2.0),
    },
)


class Scene:
    """A folder in which agents of any profile are started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self._stages: list[Stage] = []

    def stage(self, profile: AcpProfile) -> Stage:
        environment = {**ENVIRONMENT, "HOME": str(self.home)}
        stage = Stage(AcpAgentClient(profile), self.folder, environment)
        self._stages.append(stage)
        return stage

    async def start(self, profile: AcpProfile = PLAIN, session: str | None = None, **options: Any) -> Agent:
        return await self.stage(profile).start(session, **{"model": "best", **options})

    def requests(self, method: str) -> list[Any]:
        lines = (self.folder / "work space" / "requests.jsonl").read_text().splitlines()
        return [found["params"] for found in map(json.loads, lines) if found.get("method") == method]

    def entries(self, *kinds: str) -> list[dict[str, Any]]:
        return [entry for entry in read_entries(self.folder / "soldier-1-1.json") if entry["type"] in kinds]

    async def close(self) -> None:
        for stage in self._stages:
            await stage.close()


def steps(*all_steps: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, all_steps))


def message_update(text: str, message: str | None = None) -> dict[str, Any]:
    name = {"messageId": message} if message else {}
    return {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, **name}}


def tool(status: str, **fields: Any) -> dict[str, Any]:
    kind = "tool_call" if status == "pending" else "tool_call_update"
    return {"update": {"sessionUpdate": kind, "toolCallId": "call-1", "status": status, **fields}}


def used(tokens: int) -> dict[str, Any]:
    return {"update": {"sessionUpdate": "usage_update", "used": tokens, "size": 1000}}


def end(**fields: Any) -> dict[str, Any]:
    return {"end": {"stopReason": "end_turn", **fields}}


async def take(agent: Agent, *all_steps: dict[str, Any], prompt_id: str = "t1#1", **options: Any) -> list[TurnUpdate]:
    return await updates_of(agent, Prompt(id=prompt_id, text=steps(*all_steps), **options))
