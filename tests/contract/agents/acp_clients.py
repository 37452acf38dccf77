"""The agents that speak ACP, as `packaging/agents` installs them into `.agents`."""

from pathlib import Path

import pytest

from kingdom.soldiers.agents.acp.client import AcpAgentClient
from kingdom.soldiers.agents.acp.profiles import CODEX, OPENCODE, PROFILES
from kingdom.soldiers.agents.model_url import MODEL_URL
from kingdom.soldiers.sandbox.prices import Price

AGENTS = Path(__file__).parents[3] / ".agents"
MODEL = "dear-1"
ENVIRONMENT = {MODEL_URL: "{model}"}
LIMIT = "You've hit your usage limit. Upgrade to Pro, or try again at {date:%b %d, %Y} 12:00 AM."
# The prices of the model stub.
PRICES = {"dear": Price(input=1000.0, output=1000.0, cache_read=1000.0)}


def marks(name: str) -> list[pytest.MarkDecorator]:
    program = AGENTS / "node_modules" / ".bin" / PROFILES[name].program
    missing = pytest.mark.skipif(not program.exists(), reason=f"{name} is not installed: make .agents/node_modules")
    return [pytest.mark.agents, missing]


def codex() -> AcpAgentClient:
    return AcpAgentClient(CODEX, directory=AGENTS, prices=PRICES)


def opencode() -> AcpAgentClient:
    return AcpAgentClient(OPENCODE, directory=AGENTS, prices=PRICES)
