"""Every test of a host runs once per registered backend, unless it names one."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.contract.backends import BackendUnderTest
from tests.integration.soldiers.host_scene import HostScene, opened
from tests.integration.soldiers.sources import make_source
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def scene(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[HostScene]:
    """An engine running, one known repository, no host."""
    async with opened(backend, tmp_path / "machine") as scene:
        yield scene


@pytest.fixture
def patient_with_claude(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for Claude Code, because the machine may be busy."""
    for name in ("transport._ANSWER_SECONDS", "agent._MCP_SECONDS", "agent._SESSION_FILE_SECONDS"):
        monkeypatch.setattr(f"kingdom.soldiers.agents.claude.{name}", PATIENCE_SECONDS)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "host"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "app", files=3)


@pytest.fixture
def trees(host: Path) -> RunCheckouts:
    return RunCheckouts(host / "repositories", pause=timedelta(milliseconds=10))
